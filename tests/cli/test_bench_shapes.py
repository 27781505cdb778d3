"""Shapes of ``swila bench op``: several on a GPU, and those with few lanes."""

import json
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

from swila.benchmarks import baselines, tuned
from swila.cli.app import app


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Calls the command for a GPU that is not there; returns shapes, baselines and results files."""

    def invoke(*arguments):
        found = {}

        def benchmark(shapes, device, repeats, report, save, names):
            found.update(shapes=shapes, names=names)
            save({"shapes": []})
            return {"shapes": [], "decode": {"ms": 1.0, "ratio": 1.0}}

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("swila.cli.bench.parse_device", lambda device: device)
        monkeypatch.setattr(baselines, "benchmark", benchmark)
        monkeypatch.setattr(baselines, "pairs", lambda record: [])
        result = CliRunner().invoke(app, ["bench", "op", "--device", "cuda", *arguments])
        assert result.exit_code == 0, result.output
        return found["shapes"], found["names"], sorted(path.name for path in tmp_path.glob("runs/bench/*"))

    return invoke


def test_shapes_are_repeated(asked):
    shapes, names, files = asked("--shape", "B1 T8 H2", "--shape", "B2 T4 H1")
    assert [(shape.B, shape.T, shape.H) for shape in shapes] == [(1, 8, 2), (2, 4, 1)]
    assert (names, files) == (baselines.BASELINES, ["op-cuda.json"])
    assert asked()[0] == baselines.SHAPES


def test_few_lanes_are_compared_with_gdn(asked):
    shapes, names, files = asked("--few-lanes")
    assert {(shape.B * shape.H, shape.T) for shape in shapes} == {
        (128, 4096), (64, 4096), (32, 4096), (8, 4096), (32, 16384), (8, 65536),
    }  # fmt: skip
    assert all((shape.K, shape.V, shape.J) == (64, 64, 4) for shape in shapes)
    assert (names, files) == (("GDN",), ["op-lanes-cuda.json"])
    assert asked("--few-lanes", "--baseline", "KDA")[1] == ("KDA",)


def test_a_file_of_tuned_configurations(asked, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(tuned, "kept_in", lambda choices: given.append(choices and choices.path) or nullcontext())
    for more in ([], ["--tuned", str(tmp_path / "tuned.json")]):
        asked("--few-lanes", *more)
        results = json.loads((tmp_path / "runs/bench/op-lanes-cuda.json").read_text())
        assert results["tuned"] == ("tuned.json" if more else None)
    assert given == [None, tmp_path / "tuned.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--few-lanes"], "few-lanes needs a GPU"),
        (["--tuned", "t.json"], "tuned needs a GPU"),
        (["--few-lanes", "--shape", "B1"], "few-lanes and shape must not both be given"),
        (["--shape", "B1", "--shape", "B2"], "shape must be given once for a comparison of backends, got B1, B2"),
    ],
)
def test_mistakes(arguments, message):
    result = CliRunner().invoke(app, ["bench", "op", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
