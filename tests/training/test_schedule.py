"""Learning rates against their definitions."""

import math
from dataclasses import replace

import pytest

from swila.training import LearningRate
from swila.training.schedule import cosine, warmup

RATE = LearningRate(0.05, 9, "cosine", warmup_steps=3, warmup_from=0.01, min_lr=0.1)


def rates(rate, steps):
    return [rate.at(step) for step in steps]


def test_warm_up_then_constant():
    constant = LearningRate(0.2, 100, warmup_steps=10)
    assert rates(constant, (0, 4, 9, 10, 99)) == pytest.approx([0.02, 0.1, 0.2, 0.2, 0.2])


def test_cosine():
    assert rates(LearningRate(0.2, 100, "cosine", min_lr=0.1), (0, 50, 100)) == pytest.approx([0.2, 0.11, 0.02])
    assert [cosine(done) for done in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])
    assert cosine(1, 0.25) == 0.25


def test_cosine_over_epochs():
    epochs = LearningRate(0.2, 100, "cosine-epochs", steps_per_epoch=10)
    assert epochs.at(0) == epochs.at(9) == 0.2
    assert epochs.at(10) == pytest.approx(0.1 + 0.1 * math.cos(math.pi / 10))
    warm = replace(epochs, warmup_steps=15)
    assert warm.at(4) == pytest.approx(0.2 * 5 / 15)
    assert rates(warm, range(15, 100)) == rates(epochs, range(15, 100)), "the epochs of the warm-up count"


def test_warm_up_from_a_learning_rate():
    rate = LearningRate(0.2, 100, "cosine", warmup_steps=10, warmup_from=0.1, min_lr=0.1)
    assert rates(rate, (0, 4, 9, 10, 99)) == pytest.approx([0.11, 0.15, 0.2, 0.2, 0.02], abs=1e-4)
    assert warmup(9, 10, 0.1, 0.2) == pytest.approx(0.2)


def test_every_step():
    """The whole curve of each schedule, not only its ends."""
    for step in range(RATE.steps + 1):
        if step < 3:
            expected = 0.01 + 0.04 * (step + 1) / 3
        else:
            expected = 0.005 + 0.045 * (1 + math.cos(math.pi * (step - 3) / 6)) / 2
        assert RATE.at(step) == pytest.approx(expected)
    by_epochs = LearningRate(0.05, 8, "cosine-epochs", steps_per_epoch=3)
    expected = [0.05 * (1 + math.cos(math.pi * (step // 3) / 3)) / 2 for step in range(8)]
    assert rates(by_epochs, range(8)) == pytest.approx(expected), "an incomplete last epoch counts as one"
    last = LearningRate(1e-3, 4, "cosine", warmup_steps=4)
    assert last.at(4) == last.lr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be above 0 and at most 1, got -1.0"),
        ({"warmup_steps": -2}, "warmup_steps must be at least 0, got -2"),
        ({"warmup_from": 0.5}, "warmup_from must be between 0 and lr = 0.001, got 0.5"),
        ({"min_lr": 2.0}, "min_lr must be a fraction of lr between 0 and 1, got 2.0"),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine, cosine-epochs, got 'linear'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        LearningRate(**({"lr": 1e-3, "steps": 5} | options))
