"""Metrics in TensorBoard and Weights & Biases are those of metrics.jsonl, also after a resume."""

import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from small_runs import PLAIN, STEPS, Crash, crash_at, small

from swila.pretraining.engine import pretrain
from swila.training.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("quick")


def crash_and_resume(recipe, data, run):
    """Metrics of a run that crashed at step 5 and resumed from step 3."""
    with pytest.raises(Crash):
        pretrain(recipe, data, run, report=crash_at(5))
    crashed = read_metrics(run / "metrics.jsonl")
    pretrain(recipe, data, run)
    return crashed, read_metrics(run / "metrics.jsonl")


def test_tensorboard(data, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    _, lines = crash_and_resume(small("logging.tensorboard=yes"), data, tmp_path / "run")
    board = accumulator.EventAccumulator(str(tmp_path / "run"))
    board.Reload()
    names = {name for line in lines for name in line} - {"step"}
    assert set(board.Tags()["scalars"]) == names
    for name in names:
        expected = {line["step"]: line[name] for line in lines if name in line}
        found = {event.step: event.value for event in board.Scalars(name)}
        assert found == pytest.approx(expected, rel=1e-6)
        assert len(board.Scalars(name)) == len(expected), "what the resumed run repeats is there once"


def test_no_event_files_if_not_asked_for(plain):
    assert not list(plain.run.glob("events*"))


class Tracker(types.ModuleType):
    """A module in the place of wandb."""

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.begun, self.logged, self.finished = [], [], 0

    def init(self, **options):
        self.begun.append(options)
        return self

    def log(self, values, step):
        self.logged.append({"step": step, **values})

    def finish(self):
        self.finished += 1


def test_weights_and_biases(data, tmp_path, monkeypatch):
    wandb = Tracker()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    recipe = small("logging.wandb=my project")
    crashed, lines = crash_and_resume(recipe, data, tmp_path / "run")
    first, second = wandb.begun
    assert first == second, "the same ID"
    assert (first["project"], first["name"], first["resume"]) == ("my project", "run", "allow")
    assert first["config"]["recipe"]["optimizer"]["lr"] == 0.01
    assert len(first["id"]) >= 8
    assert wandb.logged == [*crashed, *lines[3:]]
    assert len(lines) == STEPS
    assert wandb.finished == 2
    pretrain(recipe, data, tmp_path / "other")
    assert wandb.begun[2]["id"] != first["id"]


def test_without_wandb_its_project_is_an_error(data, tmp_path, monkeypatch):
    monkeypatch.setattr("swila.pretraining.engine.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"logging\.wandb must be None where wandb is not installed, got 'x': pip install"
    ):
        pretrain(small("logging.wandb=x"), data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    pretrain(PLAIN, data, tmp_path / "run")
