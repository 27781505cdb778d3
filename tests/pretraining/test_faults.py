"""Crashes at any moment: the same call continues, and ends with the same bits."""

import json
import signal
from functools import partial

import pytest
import torch
from ranks import Moment, fill_disk, interrupt_self, kill_soon, terminate_self, train
from small_runs import NOISY, PLAIN, STEPS, Done, lines_of, same_bits, saved_state, small

from swila.pretraining.checkpoints import FOLDER, path_of, steps_of
from swila.training.status import read_status

WRITER = "torch.distributed.checkpoint:FileSystemWriter"
MOMENTS = {
    "before the first update": Moment("swila.pretraining.updates:Updates.run"),
    "in an update": Moment("swila.pretraining.optimizer:MasterAdamW.step", 5),
    "after an update, before its metrics": Moment("swila.training.metrics:MetricsWriter.write", 5),
    "after its metrics": Moment("swila.training.metrics:MetricsWriter.write", 5, after=True),
    "before a checkpoint": Moment("swila.pretraining.checkpoints:Checkpoints.save", 2),
    "before its tensors are written": Moment(f"{WRITER}.write_data", 2),
    "after its tensors are written": Moment(f"{WRITER}.write_data", 2, after=True),
    "before its metadata is written": Moment(f"{WRITER}.finish", 2),
    "before it gets its name": Moment(f"{WRITER}.finish", 2, after=True),
    "before old checkpoints are deleted": Moment("swila.pretraining.checkpoints:Checkpoints._delete_old", 3),
    "while one is deleted": Moment("swila.pretraining.checkpoints:shutil.rmtree"),
    "after the last checkpoint": Moment("swila.training.run_directory:RunDirectory.finish"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment(plain, data, tmp_path, moment):
    recipe = small("checkpoints.keep_last=1") if moment == "while one is deleted" else PLAIN
    assert train(recipe, data, tmp_path / "run", moment=MOMENTS[moment]) == [None]
    assert read_status(tmp_path / "run")["status"] == "interrupted"
    [outcome] = train(recipe, data, tmp_path / "run")
    assert plain.equals(tmp_path / "run", outcome["result"])


def test_killed_again_and_again(noisy, data, tmp_path):
    """Random moments, with a checkpoint after every update."""
    recipe = small("checkpoints.every=1", mixer="swila", router_noise=True, balance_marginal=0.01)
    kills = 0
    for step in (1, 2, 4, 5, 7):
        [outcome] = train(recipe, data, tmp_path / "run", at=(step, kill_soon))
        kills += outcome is None
    [outcome] = train(NOISY, data, tmp_path / "run")
    assert kills >= 2
    assert noisy.equals(tmp_path / "run", outcome["result"])


@pytest.mark.parametrize(("stop", "number"), [(terminate_self, signal.SIGTERM), (interrupt_self, signal.SIGINT)])
def test_a_signal_saves(plain, data, tmp_path, stop, number):
    [outcome] = train(PLAIN, data, tmp_path / "run", at=(4, stop))
    assert (outcome["error"], outcome["step"], outcome["signal"]) == ("Preempted", 5, number)
    assert max(steps_of(tmp_path / "run" / FOLDER)) == 5
    [outcome] = train(PLAIN, data, tmp_path / "run")
    assert plain.equals(tmp_path / "run", outcome["result"])


def disk_full(run):
    return partial(fill_disk, path_of(run / FOLDER, 3))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_full_disk_keeps_the_old_checkpoint(plain, data, tmp_path, asynchronous):
    recipe = small(f"checkpoints.asynchronous={asynchronous}")
    [outcome] = train(recipe, data, tmp_path / "run", at=(4, disk_full(tmp_path / "run")))
    assert outcome["error"] == "OSError"
    assert "the checkpoint of step 6 could not be written" in outcome["message"]
    assert "the checkpoint of step 3 is complete. Free disk space" in outcome["message"]
    assert steps_of(tmp_path / "run" / FOLDER) == [3]
    assert not list((tmp_path / "run" / FOLDER).glob(".*"))
    [outcome] = train(recipe, data, tmp_path / "run")
    assert plain.equals(tmp_path / "run", outcome["result"])


@pytest.fixture(scope="module")
def pair(data, tmp_path_factory):
    """A run with two ranks."""
    run = tmp_path_factory.mktemp("pair") / "run"
    outcomes = train(PLAIN, data, run, size=2)
    assert [outcome["error"] for outcome in outcomes] == [None, None]
    return run, outcomes[0]["result"]


def close(run, other, tolerance=1e-6):
    """Whether two runs have the same losses and norms at the same steps."""
    ours, theirs = lines_of(run), lines_of(other)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for line, expected in zip(ours, theirs, strict=True):
        assert line.keys() == expected.keys()
        for key in line:
            assert line[key] == pytest.approx(expected[key], rel=tolerance, abs=tolerance), key
    return True


def test_two_ranks_train_as_one(plain, pair, data, tmp_path):
    assert close(pair[0], plain.run)
    alone, both = plain.state, saved_state(pair[0], PLAIN, STEPS)
    for name, x in alone.items():
        torch.testing.assert_close(both[name], x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tied", [False, True])
def test_initial_weights_do_not_depend_on_the_ranks(data, tmp_path, tied):
    still = "optimizer.lr=1e-300", "schedule.steps=1", f"model.tie_word_embeddings={tied}"  # 0 in float32
    recipe = small(*still, mixer="swila")
    alone, both, copies = (tmp_path / name for name in ("alone", "both", "copies"))
    assert all(train(recipe, data, alone))
    assert all(train(recipe, data, both, size=2))
    assert all(train(small(*still, "execution.shard_size=2", mixer="swila"), data, copies, size=4))
    expected = weights_of(alone, recipe)
    assert len(expected) > 20
    assert same_bits(weights_of(both, recipe), expected)
    assert same_bits(weights_of(copies, recipe), expected)


def weights_of(run, recipe):
    return {name: x for name, x in saved_state(run, recipe, 1).items() if name.startswith("weights/")}


@pytest.mark.parametrize(
    "settings",
    [
        ("execution.activation_checkpointing=2",),
        ("execution.shard_size=1",),
        ("execution.micro_batch=1", "data.packing=documents"),
    ],
    ids=lambda settings: " ".join(settings),
)
def test_ways_to_compute_on_two_ranks(data, tmp_path, settings):
    recipe = small(*settings)
    alone = Done(recipe, data, tmp_path / "alone")
    assert all(train(recipe, data, tmp_path / "run", size=2))
    assert close(tmp_path / "run", alone.run)


def test_four_ranks_in_two_copies(plain, data, tmp_path):
    outcomes = train(small("execution.shard_size=2"), data, tmp_path / "run", size=4)
    assert [outcome["error"] for outcome in outcomes] == [None] * 4
    assert close(tmp_path / "run", plain.run)


def test_load_balancing_and_routing_on_two_ranks(data, tmp_path):
    """Statistics are those of a micro-batch: with one of the same size, two ranks train as one."""
    recipe = small("execution.micro_batch=2", mixer="swila", balance_marginal=0.01, balance_conditional=0.01)
    alone = Done(recipe, data, tmp_path / "alone")
    assert all(train(recipe, data, tmp_path / "run", size=2))
    for line, expected in zip(lines_of(tmp_path / "run"), lines_of(alone.run), strict=True):
        for key in ("train/loss", "train/auxiliary_loss", "train/gradient_norm", "validation/loss"):
            if key in expected:
                assert line[key] == pytest.approx(expected[key], rel=2e-5 if "norm" in key else 2e-6, abs=1e-6), key
        assert {key for key in line if "routing" in key} == {key for key in expected if "routing" in key}


@pytest.mark.parametrize(
    "moment",
    [
        Moment("swila.pretraining.optimizer:MasterAdamW.step", 5, rank=1),
        Moment(f"{WRITER}.write_data", 2, after=True, rank=1),
        Moment(f"{WRITER}.finish", 2, rank=0),
    ],
    ids=["rank 1 in an update", "rank 1 in a checkpoint", "rank 0 before the metadata"],
)
def test_one_of_two_ranks_is_killed(pair, data, tmp_path, moment):
    outcomes = train(PLAIN, data, tmp_path / "run", size=2, moment=moment)
    assert outcomes[moment.rank] is None
    other = outcomes[1 - moment.rank]
    assert other["error"] is not None
    outcomes = train(PLAIN, data, tmp_path / "run", size=2)
    assert [outcome["error"] for outcome in outcomes] == [None, None]
    assert lines_of(tmp_path / "run") == lines_of(pair[0])
    assert same_bits(saved_state(tmp_path / "run", PLAIN, STEPS), saved_state(pair[0], PLAIN, STEPS))


def test_two_ranks_then_one_then_two(plain, data, tmp_path):
    run = tmp_path / "run"
    first = train(PLAIN, data, run, size=2, at=(2, terminate_self))
    assert [(outcome["error"], outcome["step"]) for outcome in first] == [("Preempted", 3)] * 2
    assert first[1]["signal"] is None
    [second] = train(PLAIN, data, run, at=(4, terminate_self))
    assert second["step"] == 5
    third = train(PLAIN, data, run, size=2)
    assert [outcome["error"] for outcome in third] == [None, None]
    assert close(run, plain.run)


def test_a_full_disk_stops_both_ranks(pair, data, tmp_path):
    outcomes = train(PLAIN, data, tmp_path / "run", size=2, at=(4, disk_full(tmp_path / "run")))
    assert [outcome["error"] for outcome in outcomes] == ["OSError", "OSError"]
    assert steps_of(tmp_path / "run" / FOLDER) == [3]
    assert all(train(PLAIN, data, tmp_path / "run", size=2))
    assert lines_of(tmp_path / "run") == lines_of(pair[0])


def test_errors_of_rank_0_stop_every_rank(data, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").touch()
    outcomes = train(PLAIN, data, tmp_path / "run", size=2)
    assert {outcome["error"] for outcome in outcomes} == {"ValueError"}
    assert all("is not empty and holds no run" in outcome["message"] for outcome in outcomes)
    outcomes = train(small("data.batch_size=5"), data, tmp_path / "other", size=2)
    assert all("multiple of the 2 ranks, got 5" in outcome["message"] for outcome in outcomes)
    assert not (tmp_path / "other").exists()


def test_bfloat16_on_two_ranks(data, tmp_path):
    """Weights are gathered in bfloat16, masters are float32, and a resumed run has the same bits."""
    recipe = small("precision=bfloat16")
    alone = Done(recipe, data, tmp_path / "alone")
    assert all(train(recipe, data, tmp_path / "whole", size=2))
    assert close(tmp_path / "whole", alone.run, 0.02)
    train(recipe, data, tmp_path / "run", size=2, at=(4, terminate_self))
    assert all(train(recipe, data, tmp_path / "run", size=2))
    assert lines_of(tmp_path / "run") == lines_of(tmp_path / "whole")
    state = saved_state(tmp_path / "run", recipe, STEPS)
    assert any((x != x.bfloat16().float()).any() for x in state.values())


def test_a_rank_that_finds_a_bad_batch_stops_all(data, tmp_path):
    recipe = small("optimizer.lr=1.0", "optimizer.clip=none", "stability.max_loss_increase=none")
    outcomes = train(recipe, data, tmp_path / "run", size=2, moment=None, at=(3, spoil_weights))
    assert {outcome["error"] for outcome in outcomes} == {"BadBatchError"}
    record = json.loads((tmp_path / "run" / "bad-batch.json").read_text())
    assert record["step"] == 3
    assert len(record["sequences"]) == recipe.data.batch_size


def spoil_weights():
    """Make the weights of this rank NaN."""
    import gc

    from swila.pretraining.optimizer import MasterAdamW

    for each in gc.get_objects():
        if isinstance(each, MasterAdamW):
            for master in each.masters.values():
                master.data.fill_(float("nan"))
