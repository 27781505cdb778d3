"""Runs that crash, are stopped or find a full disk end with the same bits as those that are not."""

import errno
import time
from contextlib import contextmanager

import pytest
from small_runs import (
    NOISY,
    PLAIN,
    STEPS,
    Crash,
    Done,
    crash_at,
    lines_of,
    same_bits,
    saved_state,
    small,
    wait_until_written,
)
from torch.distributed.checkpoint import FileSystemWriter

from swila.pretraining import engine
from swila.pretraining.checkpoints import FOLDER, path_of, steps_of
from swila.pretraining.engine import Preempted, pretrain
from swila.pretraining.settings import from_json
from swila.pretraining.updates import Updates
from swila.training import Interrupts, RunDirectory, read_status
from swila.training.json_files import read_json

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_run_that_resumes_ends_with_the_same_bits(noisy, data, tmp_path, step):
    run = tmp_path / "run"
    with pytest.raises(Crash):
        pretrain(NOISY, data, run, report=crash_at(step))
    before = step // 3 * 3
    assert steps_of(run / FOLDER) == [s for s in (3, 6) if s <= step], "one that was being written is complete"
    news = []
    result = pretrain(NOISY, data, run, report=news.append)
    assert noisy.equals(run, result)
    assert [each.step for each in news] == [*([before] if before else []), *range(before + 1, STEPS + 1)]
    if before:
        assert news[0].note == f"resumes from the checkpoint of step {before}"


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_that_crashes_after_every_update(data, tmp_path, precision):
    recipe = small("checkpoints.every=1", f"precision={precision}")
    expected = Done(recipe, data, tmp_path / "straight")
    for step in range(1, STEPS):
        with pytest.raises(Crash):
            pretrain(recipe, data, tmp_path / "run", report=crash_at(step))
    assert expected.equals(tmp_path / "run", pretrain(recipe, data, tmp_path / "run"))


def test_a_checkpoint_gets_its_name_as_soon_as_it_is_written(data, tmp_path):
    folder, found = tmp_path / "run" / FOLDER, []

    def report(news):
        if news.step == 4:
            while not (steps_of(folder) or (folder / ".step-00000003.part" / ".metadata").exists()):
                time.sleep(0.01)
            time.sleep(0.1)
        elif news.step == 5:
            found.extend(steps_of(folder))

    pretrain(PLAIN, data, tmp_path / "run", report=report)
    assert found == [3], "before the next one is written"


@pytest.fixture
def flag(monkeypatch):
    """The flag that a signal sets."""
    flag = Interrupts()

    @contextmanager
    def given():
        yield flag

    monkeypatch.setattr(engine, "interrupts_as_flag", given)
    return flag


@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_signal_stops_a_run_after_the_update_under_way(plain, data, tmp_path, flag, step):
    def report(news):
        if news.step == step:
            flag.signal = 15
            flag.set()

    with pytest.raises(Preempted, match=f"stopped by a signal at step {step + 1}; the run is saved") as raised:
        pretrain(PLAIN, data, tmp_path / "run", report=report)
    assert (raised.value.step, raised.value.signal) == (step + 1, 15)
    assert steps_of(tmp_path / "run" / FOLDER)[-1] == step + 1
    assert not (tmp_path / "run" / "error.json").exists()
    flag.clear()
    assert plain.equals(tmp_path / "run", pretrain(PLAIN, data, tmp_path / "run"))


def test_a_signal_during_the_last_update_does_not_stop_it(plain, data, tmp_path, flag):
    result = pretrain(PLAIN, data, tmp_path / "run", report=lambda news: flag.set() if news.step == 7 else None)
    assert plain.equals(tmp_path / "run", result)


def test_a_finished_run_returns_its_result_without_training(plain, data, monkeypatch):
    monkeypatch.setattr(engine, "Session", lambda run: pytest.fail("trained again"))
    before = plain.state
    assert pretrain(PLAIN, data, plain.run) == plain.result
    assert same_bits(saved_state(plain.run, PLAIN, STEPS), before)


def test_a_crash_before_the_result_is_written_repeats_nothing(plain, data, tmp_path, monkeypatch):
    def fail(self, result):
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "finish", fail)
        with pytest.raises(Crash):
            pretrain(PLAIN, data, tmp_path / "run")
    monkeypatch.setattr(Updates, "run", lambda *_: pytest.fail("trained again"))
    assert plain.equals(tmp_path / "run", pretrain(PLAIN, data, tmp_path / "run"))


def test_fresh_deletes_the_run_that_is_there(plain, data, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(Crash):
        pretrain(small("seed=1"), data, run, report=crash_at(4))
    (run / "mark").write_text("of the old run")
    news = []
    result = pretrain(PLAIN, data, run, fresh=True, report=news.append)
    assert plain.equals(run, result)
    assert news[0].step == 1
    assert not (run / "mark").exists()


@pytest.mark.parametrize(
    "setting", ["data.length=100000", "execution.shard_size=3", "model.vocab_size=3", "logging.wandb=x"]
)
def test_fresh_with_a_recipe_that_does_not_fit_deletes_nothing(plain, data, tmp_path, setting, monkeypatch):
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    run = tmp_path / "run"
    with pytest.raises(Crash):
        pretrain(PLAIN, data, run, report=crash_at(4))
    with pytest.raises(ValueError, match="must"):
        pretrain(small(setting), data, run, fresh=True)
    assert plain.equals(run, pretrain(PLAIN, data, run))


def test_how_a_run_is_executed_may_change(plain, data, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(Crash):
        pretrain(PLAIN, data, run, report=crash_at(4))
    changed = small(
        "execution.micro_batch=1",
        "execution.activation_checkpointing=all",
        "checkpoints.every=1",
        "checkpoints.asynchronous=no",
        "checkpoints.keep_last=4",
        "validation.every=2",
        "logging.every=4",
        "stability.skip_bad_batches=yes",
    )
    pretrain(changed, data, run)
    assert from_json(read_json(run / "recipe.json")) == changed
    assert steps_of(run / FOLDER) == [5, 6, 7, 8]
    lines = lines_of(run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 6, 8]
    assert lines[-1]["train/loss"] == pytest.approx(plain.lines[-1]["train/loss"], rel=1e-3)


def test_metrics_after_the_checkpoint_are_written_once(plain, data, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(Crash):
        pretrain(PLAIN, data, run, report=crash_at(5))
    assert [line["step"] for line in lines_of(run)] == [1, 2, 3, 4, 5]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "train/lo')
    with pytest.raises(Crash):
        pretrain(PLAIN, data, run, report=crash_at(4))
    assert [line["step"] for line in lines_of(run)] == [1, 2, 3, 4]
    assert plain.equals(run, pretrain(PLAIN, data, run))


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("asynchronous", ["yes", "no"])
def test_a_full_disk_stops_the_run_with_the_older_checkpoint(data, tmp_path, plain, monkeypatch, asynchronous, noted):
    recipe, run = small(f"checkpoints.asynchronous={asynchronous}"), tmp_path / "run"

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def report(news):
        if news.step == 4:
            wait_until_written(path_of(run / FOLDER, 3))
            monkeypatch.setattr(FileSystemWriter, "write_data", fail)
            if not noted:
                monkeypatch.setattr(RunDirectory, "note_failure", fail)

    message = r"the checkpoint of step 6 could not be written to .*; the checkpoint of step 3 is complete\. Free disk"
    with pytest.raises(OSError, match=message):
        pretrain(recipe, data, run, report=report)
    monkeypatch.undo()
    assert [path.name for path in (run / FOLDER).iterdir()] == ["step-00000003"]
    assert (run / "error.json").exists() == noted
    if noted:
        assert read_status(run)["status"] == "failed"
    assert plain.equals(run, pretrain(recipe, data, run))


def test_a_checkpoint_that_cannot_be_read_stops_the_run(data, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(Crash):
        pretrain(PLAIN, data, run, report=crash_at(7))
    (path_of(run / FOLDER, 6) / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(ValueError, match=r"step-00000006 cannot be read \(.*\); delete it to use the one before"):
        pretrain(PLAIN, data, run)
