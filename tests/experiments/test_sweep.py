"""Sweeps: many runs from one command, whatever becomes of some of them."""

import json
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from swila.experiments.cdar.runs import make_runs
from swila.experiments.choice import choose_by_validation
from swila.experiments.experiment import Experiment
from swila.experiments.registry import EXPERIMENTS, REGBENCH
from swila.experiments.sweep import claim, run_all, take_turns
from swila.training import Progress, RunDirectory, read_status

RESULT = {"status": "finished", "metric": "accuracy", "best": 1.0, "best_step": 1, "final": 1.0}
RESULT |= {"steps": 1, "device": "cpu", "seconds": 0.1}


def few(models=None, steps=6, seeds=(0,)):
    """Runs with few steps and little data."""
    runs = make_runs("tiny", models=models, seeds=seeds, steps=steps)
    return [
        replace(run, train_examples=128, test_examples=32, training=replace(run.training, eval_every=3)) for run in runs
    ]


@dataclass(frozen=True)
class Odd:
    """A run that misbehaves as its name says."""

    name: str

    def config(self):
        return {"name": self.name}

    def begin(self, directory, device, tensorboard):
        if self.name == "broken":
            raise RuntimeError("out of memory")
        if self.name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name == "slow":
            time.sleep(600)
        if self.name == "interrupted while getting ready":
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("still getting ready")
        return OddTraining(directory)


class OddTraining:
    """Over before it began."""

    ended = True

    def __init__(self, directory):
        self.directory = directory

    def save(self):
        pass

    close = save

    def finish(self):
        result = RESULT | {"threads": torch.get_num_threads()}
        self.directory.finish(result)
        return result


def test_a_failed_run_does_not_stop_the_others(tmp_path):
    news = []
    runs = [Odd("broken"), Odd("fine"), Odd("good")]
    for jobs in (1, 2):
        results = run_all(runs, tmp_path / str(jobs), jobs=jobs, threads=3, report=news.append)
        assert results["broken"] == {"status": "failed", "error": "RuntimeError: out of memory"}
        assert results["fine"]["status"] == results["good"]["status"] == "finished"
        assert results["fine"]["threads"] == results["good"]["threads"] == 3
        assert {item.name for item in news if item.result} == {"broken", "fine", "good"}


def test_an_interrupt_does_not_wait_for_a_run_to_get_ready(tmp_path):
    class Long(OddTraining):
        ended, saved = False, False

        def advance(self):
            return Progress(1, 9, None)

        def save(self):
            Long.saved = True

    class Before(Odd):
        def begin(self, directory, device, tensorboard):
            return Long(directory)

    news = []
    runs = [Before("under way"), Odd("interrupted while getting ready"), Odd("waiting")]
    with pytest.raises(KeyboardInterrupt):
        take_turns(runs, tmp_path, "cpu", 2, False, news.append)
    assert Long.saved
    assert [item.name for item in news if item.progress is None] == ["under way", *2 * [runs[1].name]]
    assert not any(item.result for item in news)


def test_workers_that_get_ready_are_not_waited_for(tmp_path):
    def report(news):
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_all([Odd("slow"), Odd("fine")], tmp_path, jobs=2, report=report)
    assert time.monotonic() - begun < 300
    assert read_status(tmp_path / "slow")["status"] in ("waiting", "interrupted")


def test_a_killed_worker_costs_one_run(tmp_path):
    runs = [Odd("killed"), *(Odd(f"fine{i}") for i in range(3))]
    results = run_all(runs, tmp_path, jobs=2)
    assert results.pop("killed") == {"status": "failed", "error": "the process died (exit code -9)"}
    assert {result["status"] for result in results.values()} == {"finished"}


def test_a_report_that_raises_stops_the_workers(tmp_path):
    def report(news):
        raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="terminal"):
        run_all([Odd("a"), Odd("b")], tmp_path, jobs=2, report=report)


def test_mistakes_in_directories_cost_nothing(tmp_path):
    RunDirectory(tmp_path / "a", Odd("a").config()).finish(RESULT)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("important")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        run_all([Odd("a"), Odd("b")], tmp_path, fresh=True)
    assert RunDirectory(tmp_path / "a", Odd("a").config()).result == RESULT


def test_two_commands_in_one_directory(tmp_path):
    def report(news):
        with pytest.raises(ValueError, match="another command is using"):
            run_all([Odd("b")], tmp_path)

    run_all([Odd("a")], tmp_path, report=report)
    assert run_all([Odd("b")], tmp_path)["b"]["status"] == "finished"


def test_two_runs_of_one_name(tmp_path):
    with pytest.raises(ValueError, match="runs must have different names, got a twice"):
        run_all([Odd("a"), Odd("a")], tmp_path)
    assert len(make_runs("tiny", ["swila", "swila"], lrs=[0.1, 0.1], seeds=[1, 1])) == 1


def test_side_by_side_gives_the_same_numbers_as_in_turn(tmp_path):
    runs = few(["temporal-swila", "deltanet"])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    one = run_all(runs, tmp_path / "one", tensorboard=False)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    two = run_all(runs, tmp_path / "two", jobs=2, tensorboard=False)
    for run in runs:
        assert one[run.name]["best"] == two[run.name]["best"]
        a, b = (RunDirectory(tmp_path / d / run.name, run.config()).metrics() for d in ("one", "two"))
        assert [line["train/loss"] for line in a] == [line["train/loss"] for line in b]


def test_an_interrupted_sweep_goes_on(tmp_path):
    runs = few(["temporal-swila", "deltanet"], steps=9)

    def interrupt(news):
        if news.name.startswith("deltanet") and news.progress and news.progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(runs, tmp_path / "sweep", tensorboard=False, report=interrupt)
    steps = []
    results = run_all(
        runs,
        tmp_path / "sweep",
        tensorboard=False,
        report=lambda n: n.progress and steps.append((n.name, n.progress.step)),
    )
    assert steps == [(runs[1].name, step) for step in (6, 7, 8, 9)]
    whole = run_all(runs, tmp_path / "whole", tensorboard=False)
    assert {n: r["best"] for n, r in results.items()} == {n: r["best"] for n, r in whole.items()}


def test_taking_turns_changes_no_number(tmp_path):
    """Runs in one process have random numbers of their own, and the caller keeps his."""
    runs = few(["temporal-swila", "swila", "deltanet"])
    alone = run_all(runs, tmp_path / "alone", tensorboard=False, threads=torch.get_num_threads())
    torch.manual_seed(5)
    before = torch.get_rng_state()
    order = []
    together = take_turns(runs, tmp_path / "together", "cpu", 3, False, lambda news: order.append(news.name))
    assert torch.equal(torch.get_rng_state(), before)
    assert order[:3] == [run.name for run in runs], "each has a turn before the first has its second"
    for run in runs:
        a, b = (RunDirectory(tmp_path / where / run.name).metrics() for where in ("alone", "together"))
        assert [line["train/loss"] for line in a] == [line["train/loss"] for line in b]
        assert alone[run.name]["best"] == together[run.name]["best"]


def test_taking_turns_interrupted_saves_all(tmp_path):
    runs = few(["temporal-swila", "deltanet"])

    def interrupt(news):
        if news.progress and news.progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_turns(runs, tmp_path, "cpu", 2, False, interrupt)
    for run in runs:
        directory = RunDirectory(tmp_path / run.name)
        assert directory.load_checkpoint()["state"]["step"] == 2
        assert read_status(directory.path)["step"] == 2
    steps = []
    take_turns(runs, tmp_path, "cpu", 2, False, lambda news: news.progress and steps.append(news.progress.step))
    assert steps == [3, 3, 4, 4, 5, 5, 6, 6]


def test_how_runs_stand(tmp_path):
    """From the files alone: waiting, running, interrupted, failed, diverged, finished."""
    names = ("waiting", "running", "interrupted", "failed", "diverged", "finished")
    at = {name: RunDirectory(tmp_path / name, {"name": name}) for name in names}
    for name in names[1:]:
        at[name].note_start()
    gone = json.loads((at["interrupted"].path / "progress.json").read_text()) | {"pid": 2**22 - 1, "step": 7}
    (at["interrupted"].path / "progress.json").write_text(json.dumps(gone))
    at["failed"].note_failure(RuntimeError("out of memory"))
    at["diverged"].finish(RESULT | {"status": "diverged", "best": None})
    at["finished"].finish(RESULT | {"best": 0.5})
    found = {name: read_status(directory.path) for name, directory in at.items()}
    assert {name: state["status"] for name, state in found.items()} == {name: name for name in names}
    assert found["failed"]["error"] == "RuntimeError: out of memory"
    assert "Traceback" not in found["failed"]["error"]
    assert "RuntimeError: out of memory" in json.loads((at["failed"].path / "error.json").read_text())["traceback"]
    assert found["interrupted"]["step"] == 7
    at["failed"].note_start()
    assert read_status(at["failed"].path)["status"] == "running", "tried again"


def test_a_failure_is_noted_and_forgotten(tmp_path, monkeypatch):
    run_all([Odd("broken"), Odd("killed"), Odd("fine")], tmp_path, jobs=2)
    assert read_status(tmp_path / "broken")["error"] == "RuntimeError: out of memory"
    assert read_status(tmp_path / "killed")["error"] == "RuntimeError: the process died (exit code -9)"
    monkeypatch.setattr(Odd, "begin", lambda self, directory, *_: OddTraining(directory))
    assert run_all([Odd("broken")], tmp_path)["broken"]["status"] == "finished"
    assert read_status(tmp_path / "broken")["status"] == "finished"
    assert not (tmp_path / "broken" / "error.json").exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_broken_directory_does_not_stop_the_others(tmp_path, jobs):
    def report(news):
        if not (tmp_path / "broken-later").is_file():  # while the first one runs
            (tmp_path / "broken-later" / "config.json").unlink()
            (tmp_path / "broken-later" / "environment.json").unlink()
            (tmp_path / "broken-later").rmdir()
            (tmp_path / "broken-later").write_text("a file")

    runs = [Odd("a"), Odd("b"), Odd("broken-later"), Odd("c")]
    results = run_all(runs, tmp_path, jobs=jobs, report=report)
    assert results["broken-later"]["status"] == "failed"
    assert "is a file" in results["broken-later"]["error"]
    assert [results[name]["status"] for name in "abc"] == ["finished"] * 3


def test_what_is_over_is_not_run_again(tmp_path):
    """Whatever has become of the other files of a run with a result."""
    runs = [Odd("broken"), Odd("fine")]  # the first would fail
    own = RunDirectory(tmp_path / "broken", runs[0].config())
    own.finish(RESULT | {"best": 0.5})
    (own.path / "checkpoint.pt").write_bytes(b"half a checkpoint")
    (own.path / "progress.json").write_text("")
    results = run_all(runs, tmp_path)
    assert results["broken"] == RESULT | {"best": 0.5}
    assert results["fine"]["best"] == 1.0


def test_an_experiment_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "experiment.json").write_text("")
    with pytest.raises(ValueError, match=r"experiment.json must be a JSON file, but cannot be read: Expecting value"):
        claim(tmp_path, {"experiment": "cdar", "preset": "tiny"})


def test_progress_is_noted_now_and_then(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path / "run", {})
    directory.note_start()
    directory.note_progress(Progress(3, 9, None))
    assert read_status(directory.path)["step"] == 0, "not at every step"
    directory._noted -= 10
    directory.note_progress(Progress(4, 9, 0.5))
    state = read_status(directory.path)
    assert (state["status"], state["step"], state["steps"], state["score"]) == ("running", 4, 9, 0.5)
    directory.note_progress(Progress(5, 9, 0.5), now=True)
    assert read_status(directory.path)["step"] == 5


def judged(name, seed, lr, validation, test, status="finished", **more):
    row = {"name": name, "model": "swila", "size": "H1", "state": 4, "parameters": 9, "seed": seed, "lr": lr}
    over = {"best": test, "best_step": 10, "validation": {"loss": validation}, "test": {"r2": test}}
    return row | {"status": status, "steps_per_epoch": 4.0} | (over if test is not None else {"best": None}) | more


def test_learning_rates_are_chosen_by_validation_and_scores_are_of_the_test_set():
    runs = [
        judged("a", 0, 1e-3, 0.5, 0.9),  # better on the test set, but who would know
        judged("b", 0, 3e-3, 0.4, 0.8),
        judged("c", 1, 3e-3, 0.3, 0.6, "diverged"),
        judged("d", 1, 1e-2, None, None, "diverged"),
        judged("f", 0, 1e-2, 0.2, 0.95),  # the lowest loss, but the other seed has nothing to show
    ]
    unfinished = {key: value for key, value in judged("e", 2, 1e-3, 1, None, "interrupted").items() if key != "best"}
    row = choose_by_validation([*runs, unfinished], "swila H1")
    assert row["scores"] == [0.8, 0.6]
    assert row["mean"] == pytest.approx(0.7)
    assert (row["seeds"], row["lr"], row["best_epochs"]) == ([0, 1], 3e-3, [2.5, 2.5])
    assert row["validation_loss"] == pytest.approx(0.35)
    assert row["unfinished"] == ["e"]
    assert row["diverged"] == ["c", "d"]
    assert row["test"] == {"r2": pytest.approx(0.7)}
    with pytest.raises(ValueError, match="runs of swila H1 must be trained alike to be compared"):
        choose_by_validation([runs[0] | {"planned_steps": 5}, runs[1] | {"planned_steps": 9}], "swila H1")
    fewer = judged("g", 2, 1e-3, 0.6, 0.1)  # a seed that has not tried 3e-3 does not count
    assert choose_by_validation([*runs, fewer], "swila H1")["scores"] == [0.8, 0.6]
    only = choose_by_validation(runs[3:], "swila H1")
    assert only["scores"] == [0.95]
    empty = choose_by_validation([unfinished], "swila H1")
    assert (empty["mean"], empty["scores"], empty["test"]) == (None, [], {})


def test_records_are_joined_and_what_is_over_counts():
    over, unfinished = judged("a", 0, 1e-3, 0.5, 0.9), {"name": "a", "model": "swila", "status": "running"}
    here = {"experiment": "regbench", "environment": {"commit": "x", "date": "1"}, "yardsticks": {}, "rows": []}
    here |= {"task": {"symbols": 18}}
    there = here | {"environment": {"commit": "y", "date": "1"}}
    again = here | {"environment": {"commit": "x", "date": "2"}}
    more = {"train_examples": 1000, "curve": []}
    for parts in ([over, unfinished], [unfinished, over]):
        records = [
            place | {"runs": {"a": judged("a", 0, 1e-3, 0.5, None) | more | part}}
            for place, part in zip((here, there), parts, strict=True)
        ]
        for record, part in zip(records, parts, strict=True):
            if part is unfinished:
                del record["runs"]["a"]["best"]
        joined = REGBENCH.join([*records, again | {"runs": {}}])
        assert joined["runs"]["a"]["best"] == 0.9
        assert [joined["environment"]["commit"], *(e["commit"] for e in joined["other_environments"])] == ["x", "y"]
        assert joined["rows"][0]["scores"] == [0.9]


@pytest.mark.parametrize("key", ["planned_steps", "precision", "train_examples", "parameters"])
def test_runs_of_one_name_must_be_trained_alike(key):
    run = judged("a", 0, 1e-3, 0.5, 0.9, curve=[], precision="bfloat16", planned_steps=9, train_examples=1000)
    record = {"environment": {}, "task": {}, "runs": {"a": run}}
    other = record | {"runs": {"a": run | {key: "tf32" if key == "precision" else 7}}}
    with pytest.raises(ValueError, match=f"trained alike to be joined, but a has another {key}"):
        REGBENCH.join([record, other])


def test_of_runs_that_are_not_over_the_longest_is_joined():
    record = {"experiment": "cdar", "environment": {"commit": "x"}, "task": {}, "rows": []}
    name = "attention-d64-l2-lr0.00316-seed0"
    known = json.loads(Path("results/cdar-paper.json").read_text())["runs"][name]
    planned = {
        key: value for key, value in known.items() if key not in ("best", "best_step", "final", "steps", "seconds")
    }
    shorter = planned | {"status": "interrupted", "step": 3, "score": 0.1, "curve": [[2, 0.1]]}
    longer = shorter | {"step": 4}
    for parts in ([shorter, longer], [longer, shorter]):
        joined = EXPERIMENTS["cdar"].join([record | {"runs": {name: run}} for run in parts])
        assert joined["runs"][name] == longer


@pytest.mark.parametrize("path", sorted(Path("results").glob("*.json")), ids=lambda path: path.stem)
def test_results_agree_with_their_curves(path):
    """Of a run that is not over, the last evaluation of its curve is its score, at a step it has come to."""
    record = json.loads(path.read_text())
    runs = record.get("runs")
    for name, run in (runs if isinstance(runs, dict) else {}).items():
        if run.get("curve"):
            step, score = run["curve"][-1]
            assert step <= run["steps" if "best" in run else "step"], name
            assert "best" in run or run["score"] == score, name


def test_every_experiment_can_be_claimed_by_its_name(tmp_path):
    for name, experiment in EXPERIMENTS.items():
        assert isinstance(experiment, Experiment)
        assert experiment.name == name
        claim(tmp_path / name, {"experiment": name, "preset": "tiny"})
        assert set(experiment.presets) == {"tiny", "small", "paper"}
