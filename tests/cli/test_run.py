"""``swila run`` as a user runs it."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from swila.cli.app import app
from swila.cli.options import parse_seeds
from swila.experiments.recall.presets import SETTINGS
from swila.experiments.recall.runs import MODELS


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, ["run", "cdar", *map(str, arguments)])


def test_from_start_to_figures(run, tmp_path):
    arguments = "--seeds", 2, "--steps", 4, "--out", tmp_path / "runs", "--model", "swila", "--model", "deltanet"
    result = run(*arguments, "--jobs", 1)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert [(row["model"], row["state"], row["runs"]) for row in record["rows"]] == [
        ("swila", 192, 2),
        ("deltanet", 192, 2),
    ]
    assert record["plateau"] == pytest.approx(1 / 3)
    assert {"commit", "torch", "cpu"} <= record["environment"].keys()
    for row in record["rows"]:
        assert f"{row['best']:.3f}" in result.output
    for name in ("accuracy.png", "accuracy.svg", "routing.png", "routing.svg"):
        assert (tmp_path / "runs" / name).stat().st_size > 3000
    first = tmp_path / "runs" / "swila-d16-l1-lr0.007-seed0" / "environment.json"
    first.write_text(json.dumps(json.loads(first.read_text()) | {"commit": "older"}))
    again = run(*arguments)
    assert again.exit_code == 0
    assert "4 of 4 runs have a result already" in again.output
    record = json.loads((tmp_path / "runs" / "results.json").read_text())
    assert record["environment"]["commit"] == "older"
    assert [where["commit"] for where in record["other_environments"]] != ["older"]
    more = run("--seeds", "7,", *arguments[2:], "--jobs", 1)
    assert "including 4 runs of earlier commands in this directory" in more.output
    rows = json.loads((tmp_path / "runs" / "results.json").read_text())["rows"]
    assert [(row["model"], row["runs"]) for row in rows] == [("swila", 3), ("deltanet", 3)]
    other = run(*arguments[:3], 5, *arguments[4:])
    assert other.exit_code == 2
    assert (
        "holds another run (training.steps is 4 there and 5 here); choose another directory, or delete that run"
        in other.stderr
    )
    assert other.stderr.count("\n") == 1
    assert run(*arguments[:3], 5, *arguments[4:], "--fresh", "--jobs", 1).exit_code == 0


def ignore_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize(("number", "begin"), [(signal.SIGINT, None), (signal.SIGTERM, ignore_ctrl_c)])
def test_interrupted_and_resumed(tmp_path, number, begin):
    """The workers save, and the same command goes on; a script's command in the background ignores Ctrl-C."""
    command = [sys.executable, "-c", "from swila.cli import main; main()", "run", "cdar", "--seeds", "2", "--jobs", "2"]
    command += ["--model", "deltanet", "--steps", "150", "--out", str(tmp_path / "runs"), "--no-tensorboard"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, preexec_fn=begin
    )
    metrics = [tmp_path / "runs" / f"deltanet-d16-l1-lr0.007-seed{s}" / "metrics.jsonl" for s in (0, 1)]
    begun = time.monotonic()
    while not all(path.exists() and path.read_text().count("\n") >= 1 for path in metrics):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() - begun < 120
        time.sleep(0.05)
    os.killpg(process.pid, number)  # as a terminal, or a batch system, does
    output, _ = process.communicate(timeout=60)
    assert "Traceback" not in output
    assert process.returncode == 130, output
    assert "interrupted; the same command resumes" in output
    reached = [json.loads(path.read_text().splitlines()[-1])["step"] for path in metrics]
    assert all(step < 150 for step in reached)
    if number == signal.SIGTERM:
        return  # it resumes as after Ctrl-C
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    for path in metrics:
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(50, 151, 50))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "huge"], "preset must be one of tiny, small, paper, got 'huge'"),
        (["--seeds", "²"], "got '²'"),
        (["--model", "dn-mom"], "model dn-mom needs 4 memories or more to route between, this preset has 3"),
        (
            ["--model", "gpt"],
            "model must be one of temporal-swila, swila, deltanet, gated-deltanet, kda, dn-mom, ",
        ),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--out", "/proc/none"], "out must be a directory that can be written to, got /proc/none: No such file"),
        (["--out", "/etc/hostname"], "out must be a directory that can be written to, got /etc/hostname: "),
        (["--seeds", "some"], "seeds must be a number of seeds (3) or a list of them (0,4,7), got 'some'"),
        (["--seeds", "0"], "got '0'"),
        (["--hidden-size", "10"], "hidden size must be a multiple of 4, got 10"),
        (["--lr", "-1"], "lr must be above 0 and at most 1, got -1.0"),
        (["--lr", "5"], "lr must be above 0 and at most 1, got 5.0"),
    ],
)
def test_mistakes_get_one_line(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_somebody_elses_directory(run, tmp_path):
    (tmp_path / "thesis.tex").write_text("important")
    for fresh in ([], ["--fresh"]):
        result = run("--out", tmp_path, "--model", "deltanet", "--seeds", "1", *fresh)
        assert result.exit_code == 2
        assert f"out {tmp_path} is not empty and holds no experiment; choose another" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_directory_of_another_experiment(run, tmp_path):
    small = "--out", tmp_path, "--model", "deltanet", "--seeds", 1, "--jobs", 1, "--no-tensorboard"
    assert run(*small, "--steps", 2).exit_code == 0
    result = run(*small, "--preset", "small", "--steps", 2)
    assert result.exit_code == 2
    assert (
        f"out {tmp_path} holds another experiment (preset is tiny there and small here); choose another"
        in result.stderr
    )


@pytest.mark.parametrize(
    ("text", "seeds"), [(None, None), ("3", [0, 1, 2]), ("0,4,7", [0, 4, 7]), ("5,", [5]), (" 2 , 1 ", [1, 2])]
)
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


def test_help_explains_itself(run):
    result = run("--help")
    assert result.exit_code == 0
    for word in ("--preset", "tiny", "paper", "--seeds", "--fresh", "Ctrl-C", "results.json", "1/C"):
        assert word in result.output, word


def test_lost_checkpoints_are_no_obstacle(run, tmp_path):
    arguments = "--out", tmp_path / "runs", "--model", "swila", "--seeds", 1, "--steps", 2, "--jobs", 1
    assert run(*arguments).exit_code == 0
    (tmp_path / "runs" / "swila-d16-l1-lr0.007-seed0" / "checkpoint.pt").unlink()
    assert run(*arguments).exit_code == 0


@pytest.mark.parametrize("line", ["[1]", "null", "{}"])
def test_an_odd_line_of_metrics_is_no_obstacle(run, tmp_path, line):
    arguments = "--out", tmp_path / "runs", "--model", "deltanet", "--seeds", 1, "--steps", 2, "--jobs", 1
    assert run(*arguments).exit_code == 0
    before = json.loads((tmp_path / "runs" / "results.json").read_text())["runs"]
    with (tmp_path / "runs" / "deltanet-d16-l1-lr0.007-seed0" / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    again = run(*arguments)
    assert again.exit_code == 0, again.output
    assert json.loads((tmp_path / "runs" / "results.json").read_text())["runs"] == before


def test_without_matplotlib_and_tensorboard(run, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    absent = {"matplotlib", "tensorboard"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in absent else found(name, *rest))
    monkeypatch.setattr("swila.training.metrics.find_spec", importlib.util.find_spec)
    result = run("--out", tmp_path / "runs", "--model", "swila", "--seeds", 1, "--steps", 2, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "no figures: they need matplotlib (pip install 'swila[plots]')" in result.output
    assert not list((tmp_path / "runs").rglob("events*"))
    assert (tmp_path / "runs" / "results.json").exists()


def test_changed_settings_have_rows_of_their_own(run, tmp_path):
    arguments = "--steps", 3, "--seeds", 1, "--model", "temporal-swila", "--jobs", 1, "--no-tensorboard"
    for change in ((), ("--set", "noise=false", "--set", "clip=null")):
        result = run(*arguments, *change, "--out", tmp_path / "runs")
        assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "runs" / "results.json").read_text())["rows"]
    assert [row["variant"] for row in rows] == ["", "noise=false,clip=null"]
    assert "noise=false,clip=null" in result.output
    mistake = run(*arguments, "--set", "noise", "--out", tmp_path / "other")
    assert mistake.exit_code == 2
    assert "set must be NAME=VALUE, got 'noise'" in mistake.stderr


def test_mqar_and_inspection(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words):
        return CliRunner().invoke(app, list(map(str, words)))

    few = "--steps", 3, "--seeds", 1, "--model", "swila", "--jobs", 1, "--no-tensorboard", "--out"
    assert call("run", "mqar", *few, tmp_path / "m").exit_code == 0
    for name in ("accuracy.png", "results.json"):
        assert (tmp_path / "m" / name).stat().st_size > 1000
    assert not (tmp_path / "m" / "state-size.png").exists(), "one size is no line"
    assert call("run", "cdar", *few, tmp_path / "c").exit_code == 0
    (directory,) = (tmp_path / "c").glob("swila-*")
    result = call("inspect", directory, "--examples", 8)
    assert result.exit_code == 0, result.output
    assert "empty place after a query" in result.output
    found = json.loads((directory / "memory.json").read_text())
    assert found["run"] == directory.name
    assert found["examples"] == 8
    (other,) = (tmp_path / "m").glob("swila-*")
    assert "run must be one of cdar, got one of MQAR" in call("inspect", other).stderr
    assert "run must be the directory of one run" in call("inspect", tmp_path / "c").stderr


@pytest.mark.parametrize("name", ["cdar", "mqar"])
def test_help_names_every_setting_and_model(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    told = "".join(CliRunner().invoke(app, ["run", name, "--help"]).output.split())  # lines break at hyphens too
    for word in (*SETTINGS, *MODELS):
        assert word in told
