"""A directory belongs to one run, and says so."""

import json
import os
import re
import socket

import pytest

from swila.training import RunDirectory, read_status
from swila.training.run_directory import runs_below

RESULT = {
    "status": "finished",
    "metric": "accuracy",
    "best": 0.5,
    "best_step": 4,
    "final": 0.25,
    "steps": 9,
    "device": "cpu",
    "seconds": 1.5,
}
CONFIG = {"training": {"lr": 0.01, "betas": (0.9, 0.999)}, "model": "swila"}
ODD_PROGRESS = ('{"step": "3"}', '{"step": null}', '{"step": 3, "steps": [4]}', '{"step": 3, "score": "high"}')


def test_the_same_run_is_welcome_again(tmp_path):
    RunDirectory(tmp_path / "a" / "b", CONFIG)
    RunDirectory(tmp_path / "a" / "b", CONFIG)


def test_the_environment_is_that_of_the_beginning(tmp_path):
    RunDirectory(tmp_path, CONFIG)
    (tmp_path / "environment.json").write_text('{"commit": "then"}')
    assert RunDirectory(tmp_path, CONFIG).environment == {"commit": "then"}
    assert RunDirectory(tmp_path, CONFIG, fresh=True).environment != {"commit": "then"}


def test_another_run_is_not(tmp_path):
    RunDirectory(tmp_path, CONFIG).finish(RESULT)
    other = {"training": {"lr": 0.02, "betas": (0.9, 0.999)}, "model": "swila"}
    with pytest.raises(ValueError, match=r"holds another run \(training.lr is 0.01 there and 0.02 here\); choose"):
        RunDirectory(tmp_path, other)
    with pytest.raises(ValueError, match=r"\(seed is only here\)"):
        RunDirectory(tmp_path, {**CONFIG, "seed": 1})
    assert RunDirectory(tmp_path, other, fresh=True).result is None


def test_what_a_crash_left_is_no_obstacle(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "environment.json").write_text("{}")
    (tmp_path / "a" / "config.tmp").write_text('{"tr')
    for fresh in (False, True):
        assert RunDirectory(tmp_path / "a", CONFIG, fresh=fresh).result is None


def test_somebody_elses_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("important")
    for fresh in (False, True):
        with pytest.raises(ValueError, match="is not empty and holds no run"):
            RunDirectory(tmp_path, CONFIG, fresh=fresh)
    assert (tmp_path / "thesis.tex").read_text() == "important"
    with pytest.raises(ValueError, match="is a file"):
        RunDirectory(tmp_path / "thesis.tex", CONFIG)


@pytest.mark.parametrize("left", ["environment.json", "result.json", "progress.json", "metrics.jsonl", "checkpoint.pt"])
def test_what_a_run_has_written_makes_it_one(tmp_path, left):
    """A run that lost one of its files is still a run."""
    (tmp_path / "run").mkdir()
    for name in ("config.json", left):
        (tmp_path / "run" / name).write_text("{}")
    assert runs_below(tmp_path) == [tmp_path / "run"]


def test_a_saved_model_is_no_run(tmp_path):
    """A ``config.json`` alone is a model of transformers, say: not listed, not opened, and never thrown away."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (model / "model.safetensors").write_bytes(b"weights")
    RunDirectory(tmp_path / "run", CONFIG)
    assert runs_below(tmp_path) == [tmp_path / "run"]
    with pytest.raises(ValueError, match="model holds no run"):
        RunDirectory(model)
    for fresh in (False, True):
        with pytest.raises(ValueError, match="model is not empty and holds no run"):
            RunDirectory(model, CONFIG, fresh=fresh)
    assert (model / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("content", [b"", b'{"status": ', b"\xff\xfe\x00", b"[1]"])
def test_an_error_of_json_names_the_file(tmp_path, content):
    def broken(file):
        (tmp_path / file).write_bytes(content)
        return pytest.raises(ValueError, match=re.escape(f"{tmp_path / file} must "))

    run = RunDirectory(tmp_path, CONFIG)
    with broken("environment.json"):
        _ = run.environment
    with broken("result.json"):
        _ = run.result
    with broken("result.json"):
        read_status(tmp_path)
    with broken("config.json"):
        _ = run.config
    with broken("config.json"):
        RunDirectory(tmp_path, CONFIG)
    assert RunDirectory(tmp_path, CONFIG, fresh=True).config["model"] == "swila"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"pid": 1}', '{"host": "here", "step": 3}', *ODD_PROGRESS])
def test_progress_that_cannot_be_read_loses_no_run(tmp_path, content):
    run, progress = RunDirectory(tmp_path, CONFIG), tmp_path / "progress.json"
    progress.write_text(content)
    assert read_status(tmp_path)["status"] in ("waiting", "interrupted")
    run.save_checkpoint({})
    progress.write_text(content)
    assert read_status(tmp_path)["status"] == "interrupted"
    run.note_start()
    found = read_status(tmp_path)
    assert found["status"] == "running"
    assert found.get("step", 0) in (0, 3)
    run.finish(RESULT)
    progress.write_text(content)
    assert run.result == read_status(tmp_path) == RESULT


@pytest.mark.parametrize("pid", [99999999999999999999, 2**31, 0, -1, True, 1.0, "1"])
def test_only_the_number_of_a_process_can_be_running(tmp_path, pid):
    """``os.kill`` takes -1 for all processes, which are always there, and overflows above 2**31."""
    RunDirectory(tmp_path, CONFIG)
    progress = {"step": 3, "steps": 9, "score": None, "host": socket.gethostname()}
    (tmp_path / "progress.json").write_text(json.dumps(progress | {"pid": pid}))
    assert read_status(tmp_path)["status"] == "interrupted"
    (tmp_path / "progress.json").write_text(json.dumps(progress | {"pid": os.getpid()}))
    assert read_status(tmp_path)["status"] == "running"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "must have a text as status, got None"),
        ({"status": 3}, "must have a text as status, got 3"),
        (RESULT | {"best": "0.5"}, "must have a number as best, got '0.5'"),
        (RESULT | {"final": [1]}, "must have a number as final, got [1]"),
        (RESULT | {"test": 0.5}, "must have an object as test, got 0.5"),
        ({"status": "finished", "final": 0.1, "best": None}, "lacks metric, best_step, steps, device, seconds"),
        ({key: value for key, value in RESULT.items() if key != "final"}, "lacks final"),
        (RESULT | {"final_validation": 0.5}, "lacks test, validation"),
        (RESULT | {"final_validation": 0.5, "test": {}}, "lacks validation"),
    ],
)
def test_a_result_that_cannot_be_used_is_an_error(tmp_path, content, message):
    run = RunDirectory(tmp_path, CONFIG)
    run.finish(content)
    for read in (lambda: run.result, lambda: read_status(tmp_path)):
        with pytest.raises(ValueError, match=re.escape(message)) as raised:
            read()
        assert str(raised.value).startswith(f"{tmp_path / 'result.json'} must ")


def test_a_run_without_a_score_is_a_result(tmp_path):
    run = RunDirectory(tmp_path, CONFIG)
    for result in (RESULT | {"best": None, "final": None}, RESULT | {"best": None, "final_validation": None}):
        run.finish(result)
        assert run.result == result


def test_a_failure_that_cannot_be_read_is_a_failure(tmp_path):
    RunDirectory(tmp_path, CONFIG)
    (tmp_path / "error.json").write_text("{")
    found = read_status(tmp_path)
    assert found["status"] == "failed"
    assert f"{tmp_path / 'error.json'} must be a JSON file" in found["error"]


@pytest.mark.parametrize("line", ['{"step": 3, "tr', "[1]", "null", "3", '"step"', "{}", '{"step": "3"}', ""])
def test_lines_that_are_no_metrics_are_passed_over(tmp_path, line):
    run = RunDirectory(tmp_path, CONFIG)
    assert run.metrics() == []
    for last in ("", '{"step": 4}\n'):
        run.metrics_path.write_text(f'{{"step": 2}}\n{line}\n{last}')
        assert [found["step"] for found in run.metrics()] == ([2, 4] if last else [2])


def test_a_checkpoint_that_cannot_be_read_says_whether_the_run_is_lost(tmp_path):
    run = RunDirectory(tmp_path, CONFIG)
    (tmp_path / "checkpoint.pt").write_bytes(b"half a checkpoint")
    with pytest.raises(ValueError, match=r"checkpoint.pt cannot be read; delete it to restart the run"):
        run.load_checkpoint()
    run.finish(RESULT)
    with pytest.raises(ValueError, match=r"checkpoint.pt cannot be read; the run has ended and keeps its result"):
        run.load_checkpoint()
