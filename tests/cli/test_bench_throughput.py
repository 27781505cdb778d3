"""``swila bench training`` and ``swila bench generation`` as a user runs them, on a CPU with tiny models."""

import json
from contextlib import nullcontext

import pytest
from typer.testing import CliRunner

pytest.importorskip("transformers")

from swila.benchmarks import tuned
from swila.benchmarks.throughput import generation, training
from swila.benchmarks.throughput.contenders import MODELS
from swila.cli.app import app
from swila.layers import fla


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments):
        return CliRunner().invoke(app, ["bench", *map(str, arguments), "--device", "cpu", "--size", "tiny"])

    return invoke


def test_training(run, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "why_refused", lambda *_: (None, {"loss": 0.0}))
    out = tmp_path / "new" / "t.json"
    arguments = ["training", "--tokens", 32, "--model", "swila", "--updates", 1, "--out", out]
    result = run(*arguments, "--length", 16, "--model", "transformer")
    assert result.exit_code == 0, result.output
    assert "no baseline: it needs a GPU" in result.output
    record = json.loads(out.read_text())
    rows = {(row["model"], row["length"]): row for row in record["rows"]}
    assert set(rows) == {("swila", 16), ("transformer", 16)}
    assert all(row["status"] == "timed" and row["tokens_per_second"] > 0 for row in rows.values())
    assert [(row["batch"], row["micro_batch"], row["compiled"]) for row in rows.values()] == [(2, 2, False)] * 2
    assert record["checks"]["swila, eager"] == {"reason": None, "errors": {"loss": 0.0}}
    assert {"benchmark": "throughput-training", "size": "tiny", "dtype": "float32"}.items() <= record.items()
    again = run(*arguments, "--length", 16, "--length", 8)
    assert again.exit_code == 0, again.output
    lengths = [(row["length"], row["batch"], row["session"]) for row in json.loads(out.read_text())["rows"]]
    assert lengths == [(16, 2, 0), (16, 2, 0), (8, 4, 1)]


def test_a_batch_instead_of_tokens(run, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(training, "benchmark", lambda cases, *_: asked.extend(cases) or [])
    assert run("training", "--batch", 8, "--length", 4096, "--out", tmp_path / "t.json").exit_code == 0
    assert [(case.model, case.length, case.batch) for case in asked] == [(name, 4096, 8) for name in MODELS]
    assert MODELS == ("transformer", "gdn", "hybrid-gdn", "swila", "temporal-swila", "hybrid-temporal-swila")
    asked.clear()
    assert run("training", "--out", tmp_path / "t.json").exit_code == 0
    shapes = [(case.length, case.batch) for case in asked if case.model == "swila"]
    assert shapes == [(2048, 64), (4096, 32), (8192, 16), (16384, 8)]


def test_the_baseline_comes_first_on_a_gpu(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(training, "benchmark", lambda cases, *_: asked.extend(cases) or [])
    monkeypatch.setattr("swila.cli.bench_training.parse_device", lambda device: device)
    monkeypatch.setattr(fla, "unusable", lambda: None)
    arguments = ["bench", "training", "--model", "swila", "--length", "2048", "--out", str(tmp_path / "t.json")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert [(case.model, case.compiled) for case in asked] == [
        ("fla-gdn", False),
        ("fla-gdn-tf32", False),
        ("swila", True),
    ]
    asked.clear()
    assert CliRunner().invoke(app, [*arguments, "--no-fla", "--no-compile"]).exit_code == 0
    assert [(case.model, case.compiled) for case in asked] == [("swila", False)]
    asked.clear()
    assert CliRunner().invoke(app, [*arguments, "--fla-compile", "--no-fla-tf32"]).exit_code == 0
    assert [(case.model, case.compiled) for case in asked] == [("fla-gdn", True), ("swila", True)]


def test_their_model_generates_first(monkeypatch, tmp_path):
    """On a GPU where flash-linear-attention is installed, unless it is not wanted."""
    asked = []
    monkeypatch.setattr(fla, "unusable", lambda: None)
    monkeypatch.setattr(generation, "benchmark", lambda names, *_: asked.append(names) or [])
    monkeypatch.setattr("swila.cli.bench_generation.parse_device", lambda device: None)
    for i, more in enumerate(([], ["--no-fla"], ["--model", "fla-gdn"])):
        words = ["bench", "generation", "--model", "swila", "--out", str(tmp_path / f"{i}.json"), *more]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert asked == [["fla-gdn", "swila"], ["swila"], ["fla-gdn", "swila"]]


@pytest.mark.parametrize("command", ["training", "generation"])
def test_a_file_of_tuned_configurations(run, monkeypatch, tmp_path, command):
    given = []
    for benchmark in (training, generation):
        monkeypatch.setattr(benchmark, "benchmark", lambda *_: [])
    monkeypatch.setattr(tuned, "kept_in", lambda choices: given.append(choices and choices.path) or nullcontext())
    for more in ([], ["--tuned", tmp_path / "tuned.json"]):
        path = tmp_path / f"{len(given)}.json"
        assert run(command, "--model", "swila", "--out", path, *more).exit_code == 0
        assert json.loads(path.read_text())["tuned"] == ("tuned.json" if more else None)
    assert given == [None, tmp_path / "tuned.json"]


def test_a_red_check_is_the_exit_status(run, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "why_refused", lambda *_: ("wrong: [d k]", {}))
    out = tmp_path / "t.json"
    result = run("training", "--tokens", 16, "--length", 8, "--model", "gdn", "--out", out)
    assert result.exit_code == 1
    assert "gdn, T 8: refused: wrong: [d k]" in result.output
    assert [row["status"] for row in json.loads(out.read_text())["rows"]] == ["refused"]


def test_generation(run, tmp_path, monkeypatch):
    out = tmp_path / "g.json"
    arguments = ["generation", "--prompt", 5, "-n", 3, "--model", "swila", "--out", out]
    result = run(*arguments, "--batch", 1, "--batch", 2)
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert [(row["batch"], row["status"], row["compiled"]) for row in record["rows"]] == [
        (1, "timed", False), (2, "timed", False),
    ]  # fmt: skip
    assert all(row["call_ms"] > row["prompt_ms"] > 0 < row["step_ms"] for row in record["rows"])
    assert record["rows"][1]["forward_ms"] > 0
    assert (record["prompt"], record["new"], record["benchmark"]) == (5, 3, "throughput-generation")
    assert "times the speed of a compiled forward" in result.output
    assert "no baseline: it needs a GPU" in result.output
    assert record["tuned"] is None
    monkeypatch.setattr(generation, "refused", lambda name, device: "other tokens")
    result = run(*arguments, "--model", "gdn", "--batch", 1)
    assert result.exit_code == 1
    assert "gdn, batch 1: refused: other tokens" in result.output
    assert len(json.loads(out.read_text())["rows"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["training", "--tokens", "100", "--length", "64"], "tokens must be a multiple of each length, got 100 and 64"),
        (["training", "--model", "llama"], "preset must be ARCHITECTURE-SIZE"),
        (["generation", "--model", "llama"], "preset must be ARCHITECTURE-SIZE"),
        (["training", "--dtype", "int8", "--length", "64"], "dtype must be one of"),
        (["generation", "--out", "/"], "out must be a file, got the directory /"),
    ],
)
def test_mistakes_get_one_line(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_results_of_other_settings_are_kept(run, tmp_path):
    out = tmp_path / "g.json"
    out.write_text(json.dumps({"benchmark": "op", "rows": []}))
    result = run("generation", "--out", out)
    assert result.exit_code == 2
    assert "benchmark is op there and throughput-generation here" in result.stderr
    assert json.loads(out.read_text())["benchmark"] == "op"
