"""MQAR as Zoology lays it out."""

import pytest
import torch

from swila.tasks import IGNORE, MQAR
from swila.tasks.examples import power_law_slots
from swila.tasks.streams import stream


def test_every_example_makes_sense():
    task = MQAR(64, 5, 40)
    examples = task.examples(200, "train")
    for inputs, labels in zip(examples.inputs.tolist(), examples.labels.tolist(), strict=True):
        memory = dict(zip(inputs[0:10:2], inputs[1:10:2], strict=True))
        assert len(memory) == len(set(memory.values())) == 5
        assert all(1 <= k < 32 for k in memory)
        assert all(32 <= v < 64 for v in memory.values())
        assert labels[:10] == [IGNORE] * 10
        asked = {inputs[t]: (labels[t], t) for t in range(10, 40) if labels[t] != IGNORE}
        assert {k: v for k, (v, _) in asked.items()} == memory
        assert all(t % 2 == 0 for _, t in asked.values())
        assert all(inputs[t] == 0 for t in range(10, 40) if labels[t] == IGNORE)


def test_random_filler_hides_nothing():
    plain, filled = MQAR(64, 5, 40).examples(50, "train"), MQAR(64, 5, 40, random_filler=True).examples(50, "train")
    assert (plain.inputs == 0).float().mean() > 0.4
    assert (filled.inputs == 0).float().mean() < 0.05
    at = filled.labels != IGNORE
    pairs = filled.inputs[:, :10].view(50, 5, 2)
    for b in range(50):
        memory = dict(pairs[b].tolist())
        assert [memory[k] for k in filled.inputs[b, at[b]].tolist()] == filled.labels[b, at[b]].tolist()


def test_slots_follow_the_power_law():
    """Against successive draws without replacement, written out for 2 of 4 slots."""
    weights = torch.arange(1, 5).double() ** (0.3 - 1)
    p = weights / weights.sum()
    drawn = power_law_slots(40_000, 2, 4, 0.3, stream(0, "slots"))
    for i in range(4):
        for j in range(4):
            expected = 0.0 if i == j else (p[i] * p[j] / (1 - p[i])).item()
            found = ((drawn[:, 0] == i) & (drawn[:, 1] == j)).double().mean().item()
            assert abs(found - expected) < 0.01


def test_seeds_splits_and_counts():
    task = MQAR(64, 5, 40)
    first = task.examples(700, "train")
    assert torch.equal(task.examples(600, "train").inputs, first.inputs[:600])
    seen = {tuple(row) for row in first.inputs.tolist()}
    assert len(seen) == 700
    for other in (task.examples(700, "test"), task.examples(700, "train", seed=1)):
        assert seen.isdisjoint(map(tuple, other.inputs.tolist()))


def test_streams_are_unrelated():
    names = [(0, "a"), (0, "b"), (1, "a"), (0, "a", 1), (0, "a", 11), (0, "a", 1, 1)]
    numbers = {stream(*name).initial_seed() for name in names}
    assert len(numbers) == len(names)
    assert stream(0, "a").initial_seed() == stream(0, "a").initial_seed()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((64, 5, 19), "length must be at least 4 \\* num_pairs = 20, got 19"),
        ((8, 4, 40), "vocab_size must be even and leave 4 keys in its lower half, got 8"),
    ],
)
def test_impossible_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        MQAR(*arguments)
