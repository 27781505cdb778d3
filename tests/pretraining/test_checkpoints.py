"""Checkpoints are complete or absent, hold the state of their step, and say clearly why they cannot be used."""

import errno
import json
import threading
from dataclasses import replace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from small_runs import copy_of, same_bits
from torch import nn
from torch.distributed.checkpoint import FileSystemWriter

from swila.pretraining.checkpoints import FOLDER, SESSION, Checkpoints, path_of, steps_of
from swila.pretraining.optimizer import MasterAdamW
from swila.pretraining.parallel import World, join_world
from swila.pretraining.recipe import CheckpointRecipe, OptimizerRecipe

ENOSPC = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(scope="module")
def world():
    with join_world("cpu") as world:
        yield world


@pytest.fixture(params=[True, False], ids=["asynchronous", "synchronous"])
def make(request, tmp_path, world):
    """Returns the checkpoints of a run."""
    return lambda **options: Checkpoints(tmp_path, world, CheckpointRecipe(asynchronous=request.param, **options))


def trained(updates, precision="float32", seed=0):
    """An optimizer after a few updates."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1, bias=False))
    optimizer = MasterAdamW(model, OptimizerRecipe(), precision)
    for step in range(updates):
        update(optimizer, step)
    return optimizer


def update(optimizer, step):
    for i, p in enumerate(optimizer.parameters.values()):
        p.grad = torch.full_like(p, step + i + 1.0)
    optimizer.accumulate()
    optimizer.gradients()
    optimizer.step(0.01)
    optimizer.clear()


def session(step, **more):
    return {"step": step, "updates": step, **more}


def state_of(optimizer):
    return {f"{kind}/{name}": x for kind, part in optimizer.state().items() for name, x in copy_of(part).items()}


def save(checkpoints, *steps):
    for step in steps:
        checkpoints.save(trained(1), session(step))
    checkpoints.wait()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_checkpoint_restores_weights_moments_and_session(make, tmp_path, precision):
    checkpoints, optimizer = make(), trained(3, precision)
    checkpoints.save(optimizer, session(40, average={"value": 1.5}) | {"updates": 3})
    checkpoints.wait()
    assert steps_of(tmp_path / FOLDER) == [40]
    assert path_of(tmp_path / FOLDER, 40).name == "step-00000040"
    other = trained(0, precision, seed=1)
    assert make().load(other, 40) == {"step": 40, "updates": 3, "average": {"value": 1.5}}
    assert same_bits(state_of(other), state_of(optimizer))
    update(other, 9)
    update(optimizer, 9)
    assert same_bits(state_of(other), state_of(optimizer)), "the bias correction continues"
    assert same_bits(copy_of(other.parameters), copy_of(optimizer.parameters))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"keep_last": 1}, [50]),
        ({"keep_last": 2}, [40, 50]),
        ({"keep_last": 9}, [10, 20, 30, 40, 50]),
        ({"keep_last": 1, "keep_every": 20}, [20, 40, 50]),
        ({"keep_last": 2, "keep_every": 30}, [30, 40, 50]),
    ],
)
def test_old_checkpoints_are_deleted(make, tmp_path, options, kept):
    save(make(**options), 10, 20, 30, 40, 50)
    assert steps_of(tmp_path / FOLDER) == kept
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == [f"step-{step:08d}" for step in kept]


def test_a_checkpoint_is_written_once(make, monkeypatch):
    checkpoints = make()
    save(checkpoints, 10)
    for name in ("save", "async_save"):
        monkeypatch.setattr(dcp, name, lambda *_, **__: pytest.fail("written again"))
    save(checkpoints, 10)


def test_rank_0_decides_whether_a_checkpoint_exists(tmp_path, world, monkeypatch):
    """It renames the directory while the other ranks go on, so what these see there is no answer."""
    monkeypatch.setattr(dcp, "save", lambda *_, **__: pytest.fail("written on one rank alone"))
    asked = []
    monkeypatch.setattr(World, "first", lambda self, value: asked.append(value) or True)
    checkpoints = Checkpoints(tmp_path, replace(world, rank=1, size=2), CheckpointRecipe(asynchronous=False))
    checkpoints.save(trained(1), session(10))
    assert asked == [False]


class Gate:
    """Lets the writing of checkpoints wait for a signal."""

    def __init__(self, monkeypatch):
        self.open, self.reached, write = threading.Event(), threading.Event(), FileSystemWriter.write_data

        def waiting(writer, plan, planner):
            self.reached.set()
            assert self.open.wait(20)
            return write(writer, plan, planner)

        monkeypatch.setattr(FileSystemWriter, "write_data", waiting)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_goes_on_while_a_checkpoint_of_its_state_is_written(tmp_path, world, monkeypatch, precision):
    gate = Gate(monkeypatch)
    checkpoints, optimizer = Checkpoints(tmp_path, world, CheckpointRecipe()), trained(2, precision)
    before, lines = state_of(optimizer), session(2, average={"value": 3.0})
    checkpoints.save(optimizer, lines)
    assert gate.reached.wait(20)
    assert not checkpoints.written()
    update(optimizer, 5)
    lines["average"]["value"] = 4.0
    lines["step"] = 3
    assert not same_bits(state_of(optimizer), before)
    assert steps_of(tmp_path / FOLDER) == []
    gate.open.set()
    checkpoints.wait()
    assert checkpoints.written()
    other = trained(0, precision)
    assert checkpoints.load(other, 2)["average"] == {"value": 3.0}
    assert same_bits(state_of(other), before)


def test_a_second_checkpoint_waits_for_the_first(tmp_path, world, monkeypatch):
    gate = Gate(monkeypatch)
    checkpoints = Checkpoints(tmp_path, world, CheckpointRecipe())
    checkpoints.save(trained(1), session(1))
    assert gate.reached.wait(20)
    threading.Timer(0.05, gate.open.set).start()
    checkpoints.save(trained(1), session(2))
    assert steps_of(tmp_path / FOLDER)[0] == 1
    checkpoints.wait()
    assert steps_of(tmp_path / FOLDER) == [1, 2]


def test_closing_lets_a_checkpoint_complete(tmp_path, world, monkeypatch):
    gate = Gate(monkeypatch)
    checkpoints = Checkpoints(tmp_path, world, CheckpointRecipe())
    checkpoints.save(trained(1), session(1))
    threading.Timer(0.05, gate.open.set).start()
    checkpoints.close()
    assert steps_of(tmp_path / FOLDER) == [1]
    checkpoints.save(trained(1), session(2))
    monkeypatch.setattr(Checkpoints, "_delete_old", lambda self: (_ for _ in ()).throw(ENOSPC))
    checkpoints.close()


def test_what_a_crash_left_is_removed_or_adopted(make, tmp_path):
    folder = tmp_path / FOLDER
    save(make(), 10, 20)
    path_of(folder, 20).rename(folder / ".step-00000020.part")
    for name in (".step-00000030.part", ".step-00000005.old"):
        (folder / name).mkdir()
        (folder / name / "__0_0.distcp").write_text("a part")
    (folder / ".step-00000030.part" / SESSION).write_text(json.dumps(session(30)))
    assert steps_of(folder) == [10], "a name that begins with a dot is no checkpoint"
    make()
    assert steps_of(folder) == [10, 20]
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000010", "step-00000020"]
    assert make().load(trained(0), 20) == session(20)


def test_a_complete_part_does_not_replace_a_checkpoint(make, tmp_path):
    folder = tmp_path / FOLDER
    save(make(), 10, 20)
    (path_of(folder, 20) / SESSION).write_text(json.dumps(session(20, mark=1)))
    path_of(folder, 20).rename(folder / ".step-00000010.part")
    make()
    assert steps_of(folder) == [10]
    assert make().load(trained(0), 10) == session(10)


def test_other_ranks_leave_the_directory_alone(tmp_path, world):
    (tmp_path / FOLDER / ".step-00000010.part").mkdir(parents=True)
    Checkpoints(tmp_path, replace(world, rank=1), CheckpointRecipe())
    assert (tmp_path / FOLDER / ".step-00000010.part").exists()


@pytest.mark.parametrize("missing", [".metadata", SESSION])
def test_a_directory_without_all_its_files_is_no_checkpoint(make, tmp_path, missing):
    save(make(), 10, 20)
    (path_of(tmp_path / FOLDER, 20) / missing).unlink()
    assert steps_of(tmp_path / FOLDER) == [10]


def test_there_are_no_steps_without_a_folder(tmp_path):
    assert steps_of(tmp_path / "absent") == []


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp", SESSION])
def test_a_checkpoint_that_cannot_be_read_is_named(make, tmp_path, file):
    save(make(), 10)
    path = path_of(tmp_path / FOLDER, 10)
    (path / file).write_bytes((path / file).read_bytes()[:9])
    with pytest.raises(ValueError, match=r"the checkpoint .*step-00000010 cannot be read \(.+\); delete it to use"):
        make().load(trained(0), 10)


def test_a_checkpoint_of_another_model_is_named(make):
    save(make(), 10)
    other = MasterAdamW(nn.Linear(3, 5), OptimizerRecipe(), "float32")
    with pytest.raises(ValueError, match=r"step-00000010 cannot be read \(.+\); delete it"):
        make().load(other, 10)


@pytest.mark.parametrize("where", ["save", "storage", "session"])
def test_a_write_that_fails_leaves_the_older_checkpoint(make, tmp_path, monkeypatch, where):
    checkpoints = make()
    save(checkpoints, 10)

    def fail(*_, **__):
        raise ENOSPC

    if where == "save":
        monkeypatch.setattr(dcp, "save", fail)
        monkeypatch.setattr(dcp, "async_save", fail)
    elif where == "storage":
        monkeypatch.setattr(FileSystemWriter, "write_data", fail)
    else:
        monkeypatch.setattr("swila.pretraining.checkpoints.write_json", fail)
    message = (
        rf"the checkpoint of step 20 could not be written to {tmp_path / FOLDER} "
        r"\(\[Errno 28\] No space left on device\); the checkpoint of step 10 is complete\. "
        r"Free disk space, and the same command resumes the run"
    )
    with pytest.raises(OSError, match=message):
        save(checkpoints, 20)
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["step-00000010"]
    monkeypatch.undo()
    save(checkpoints, 30)
    assert steps_of(tmp_path / FOLDER) == [10, 30]


def test_a_first_write_that_fails_says_that_there_is_no_older_one(make, monkeypatch):
    monkeypatch.setattr(FileSystemWriter, "write_data", lambda *_: (_ for _ in ()).throw(ENOSPC))
    with pytest.raises(OSError, match=r"step 20 could not be written .* there is no older one\. Free"):
        save(make(), 20)
