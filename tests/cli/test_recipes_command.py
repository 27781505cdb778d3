"""``swila recipes`` as a user runs it."""

import pytest
from typer.testing import CliRunner

from swila.cli.app import app
from swila.pretraining.recipes import get_recipe, recipe_names
from swila.pretraining.settings import describe

pytestmark = pytest.mark.unpoisoned  # a patched torch.empty does not know the meta device


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    hours = {"tiny": 0.001, "small": 0.5, "115m": 2.25, "374m": 1234.5, "1.3b": 12.6}
    monkeypatch.setattr("swila.pretraining.cost.gpu_hours", lambda recipe, gpu: hours[recipe.name.rpartition("-")[2]])

    def invoke(*arguments):
        return CliRunner().invoke(app, ["recipes", *map(str, arguments)])

    return invoke


def cells(output, name):
    (line,) = [line for line in output.splitlines() if line.split()[:1] == [name]]
    return " ".join(line.split())


def test_the_list(run):
    result = run()
    assert result.exit_code == 0
    for name in recipe_names():
        assert cells(result.output, name)
    paper = "temporal-swila-374m 373.6 M 15.0 B 28,610 128 × 4,096 0.0003 1,234 h"
    assert cells(result.output, "temporal-swila-374m") == paper
    assert cells(result.output, "transformer-small") == "transformer-small 64.2 M 131.1 M 1,000 64 × 2,048 0.001 30 min"
    assert cells(result.output, "gdn-tiny").endswith("0.4 M 200 8 × 256 0.002 < 1 min")
    assert cells(result.output, "swila-115m").endswith("2.2 h")
    assert cells(result.output, "swila-1.3b").endswith("13 h")


def test_one_size(run):
    output = run("--size", "115M").output
    shown = [line.split()[0] for line in output.splitlines() if line.strip().endswith(" h")]
    assert shown == recipe_names("115m")
    wrong = run("--size", "7b")
    assert wrong.exit_code == 2
    assert wrong.output == "swila: size must be one of tiny, small, 115m, 374m, 1.3b, got '7b'\n"


def test_one_recipe(run, tmp_path):
    result = run("swila-374m")
    assert result.exit_code == 0
    text, _, last = result.output.strip().rpartition("\n\n")
    assert text == describe(get_recipe("swila-374m"))
    assert last == ("374.4 M parameters, 15.0 B tokens in 28,610 steps of 524,288; estimated time on one H100: 1,234 h")
    assert "a vocabulary of 32,000" in run("swila-tiny").output
    own = tmp_path / "own.py"
    own.write_text(
        "from swila.pretraining.recipes import get_recipe\n\ndef other():\n    return get_recipe('kda-tiny')\n"
    )
    assert describe(get_recipe("kda-tiny")) in run(f"{own}:other").output


def test_mistakes(run, tmp_path):
    for arguments, message in (
        (["swila-375m"], "Did you mean swila-374m"),
        ([tmp_path / "absent.py"], "there is no file"),
        (["swila-374m", "--size", "374m"], "--size chooses among all recipes"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in result.output
        assert result.output.count("\n") == 1
