"""Bad batches stop a run with a saved state, or are skipped and counted."""

import math
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from small_runs import (
    BATCH,
    PLAIN,
    STEPS,
    Crash,
    Done,
    crash_at,
    lines_of,
    sequences_of,
    small,
)

from swila.data import ShuffledSequences
from swila.pretraining import engine, stability
from swila.pretraining.checkpoints import FOLDER, path_of, steps_of
from swila.pretraining.engine import BAD_BATCH, pretrain
from swila.pretraining.stability import BadBatchError, LossAverage, why_bad
from swila.pretraining.updates import Updates
from swila.training import read_status
from swila.training.json_files import read_json

pytestmark = pytest.mark.usefixtures("quick")


class Poisoned(Updates):
    """Updates with a head that is broken at some steps."""

    factors: ClassVar[dict] = {}

    def run(self, step, average, stop=False, failed=False):
        head = self.model.lm_head.weight
        kept = head.detach().clone()
        with torch.no_grad():
            head.mul_(self.factors.get(step, 1.0))
        update = super().run(step, average, stop, failed)
        if step in self.factors:
            with torch.no_grad():
                head.copy_(kept)
        return update


@pytest.fixture
def poison(monkeypatch):
    def apply(*steps, factor=math.nan):
        monkeypatch.setattr(Poisoned, "factors", dict.fromkeys(steps, factor))
        monkeypatch.setattr(engine, "Updates", Poisoned)

    return apply


@pytest.mark.parametrize("step", [0, 4, 6])
def test_a_loss_that_is_not_finite_stops_the_run_before_it(plain, data, tmp_path, poison, step):
    poison(step)
    run = tmp_path / "run"
    message = (
        rf"the batch of update {step} is bad: its loss is nan\. Its sequences are [\d, ]+ \(bad-batch\.json has all\); "
        rf"the state before it is saved as the checkpoint of step {step}; --skip-bad-batches goes on without it"
    )
    with pytest.raises(BadBatchError, match=message):
        pretrain(PLAIN, data, run)
    record = read_json(run / BAD_BATCH)
    order = ShuffledSequences(sequences_of(data), PLAIN.seed)
    assert record["step"] == step
    assert record["reason"] == "its loss is nan"
    assert record["positions"] == [step * BATCH, (step + 1) * BATCH]
    assert record["sequences"] == order.indices(step * BATCH, (step + 1) * BATCH)
    assert record["skipped"] is False
    assert steps_of(run / FOLDER)[-1] == step
    assert read_json(path_of(run / FOLDER, step) / "session.json")["step"] == step
    assert read_status(run)["status"] == "failed"
    assert [line["step"] for line in lines_of(run)] == list(range(1, step + 1))
    poison()
    assert plain.equals(run, pretrain(PLAIN, data, run)), "the state before the batch was saved"


def test_bad_batches_are_skipped_on_request(plain, data, tmp_path, poison):
    poison(2, 3, 6)
    recipe, run, news = small("stability.skip_bad_batches=yes"), tmp_path / "run", []
    result = pretrain(recipe, data, run, report=news.append)
    assert result["status"] == "finished"
    lines = lines_of(run)
    assert [line["bad_batches"] for line in lines] == [0, 0, 1, 2, 2, 2, 3, 3]
    assert [math.isnan(line["train/loss"]) for line in lines] == [i in (2, 3, 6) for i in range(STEPS)]
    assert lines[:2] == plain.lines[:2]
    assert [each.note for each in news if each.note] == [
        f"skipped the batch of update {step}, its loss is nan ({count} skipped so far)"
        for count, step in enumerate((2, 3, 6), 1)
    ]
    assert read_json(run / BAD_BATCH)["step"] == 6
    assert read_json(run / BAD_BATCH)["skipped"] is True
    session = read_json(path_of(run / FOLDER, STEPS) / "session.json")
    assert (session["updates"], session["bad_batches"], session["skipped"]) == (5, 3, 0)
    assert session["average"]["count"] == 5
    finite = [line["train/loss"] for line in lines if not math.isnan(line["train/loss"])]
    assert session["average"]["value"] == pytest.approx(sum(finite) / 5)


def test_a_run_with_skipped_batches_resumes_with_the_same_bits(data, tmp_path, poison):
    """The bias correction of AdamW counts updates, not steps."""
    poison(1, 2)
    recipe = small("stability.skip_bad_batches=yes", "logging.every=8", "checkpoints.every=2")
    expected = Done(recipe, data, tmp_path / "straight")
    with pytest.raises(Crash):
        pretrain(recipe, data, tmp_path / "run", report=crash_at(4))
    assert expected.equals(tmp_path / "run", pretrain(recipe, data, tmp_path / "run"))


def test_too_many_bad_batches_in_a_row_stop_the_run(data, tmp_path, poison):
    recipe = small("stability.skip_bad_batches=yes", "stability.max_skipped=2")
    poison(1, 2, 4, 5)
    assert pretrain(recipe, data, tmp_path / "good")["status"] == "finished"
    poison(0, 3, 4, 5)
    with pytest.raises(
        BadBatchError, match=r"the batch of update 5 is bad: .*; bad batches in a row before it: 2; lower"
    ):
        pretrain(recipe, data, tmp_path / "bad")
    assert steps_of(tmp_path / "bad" / FOLDER)[-1] == 5


def test_an_exploding_loss_stops_the_run(data, tmp_path, poison, monkeypatch):
    monkeypatch.setattr(stability, "TRUSTED", 3)
    poison(2, 5, factor=1000.0)
    with pytest.raises(BadBatchError, match=r"update 5 is bad: its loss [\d.]+ exceeds the average [\d.]+ of recent"):
        pretrain(small("optimizer.lr=1e-5", "optimizer.clip=1e-3"), data, tmp_path / "run")
    pretrain(small("stability.max_loss_increase=none"), data, tmp_path / "other")


LIMITS = PLAIN.stability


@pytest.mark.parametrize(
    ("loss", "norm", "average", "limits", "reason"),
    [
        (5.9, 1.0, LossAverage(3.0, 20), LIMITS, None),
        (6.1, 1.0, LossAverage(3.0, 19), LIMITS, None),
        (6.1, 1.0, LossAverage(3.0, 20), replace(LIMITS, max_loss_increase=None), None),
        (
            6.1,
            1.0,
            LossAverage(3.0, 20),
            LIMITS,
            "its loss 6.100 exceeds the average 3.000 of recent updates by more than 3",
        ),
        (math.nan, 1.0, LossAverage(), LIMITS, "its loss is nan"),
        (math.inf, math.nan, LossAverage(), LIMITS, "its loss is inf"),
        (1.0, math.inf, LossAverage(), LIMITS, "the norm of its gradient is inf"),
    ],
)
def test_what_counts_as_bad(loss, norm, average, limits, reason):
    assert why_bad(loss, norm, average, limits) == reason


def test_the_average_is_the_mean_at_first_and_then_forgets():
    average = LossAverage()
    for loss in (4.0, 2.0, 3.0):
        average.update(loss)
    assert average == LossAverage(3.0, 3)
    average = LossAverage(3.0, 500)
    average.update(4.0)
    assert average == LossAverage(pytest.approx(3.01), 501)
