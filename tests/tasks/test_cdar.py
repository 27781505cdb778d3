"""CDAR as the paper describes it: every example is read by an independent reader of the layout."""

import pytest
import torch
import torch.utils.data

from swila.tasks import CDAR, IGNORE

SIZES = [CDAR(32, 2, 3, 32), CDAR(1024, 4, 8, 256), CDAR(64, 3, 2, 45, power=1.0), CDAR(64, 2, 2, 24, context_pool=5)]


def read(task, inputs, labels, context):
    """Play the example through like a person would: learn the pairs, then answer the queries."""
    C, K, half = task.num_contexts, task.num_keys, task.vocab_size // 2
    memory, t, order = {}, 0, []
    for _ in range(C):
        name = inputs[t]
        assert 1 <= name <= task.pool
        order.append(name)
        for i in range(K):
            key, value = inputs[t + 1 + 2 * i], inputs[t + 2 + 2 * i]
            assert task.pool < key < half <= value < task.vocab_size
            assert (name, key) not in memory
            memory[name, key] = value
        assert context[t : t + 1 + 2 * K] == [name] * (1 + 2 * K)
        assert labels[t : t + 1 + 2 * K] == [IGNORE] * (1 + 2 * K)
        t += 1 + 2 * K
    keys = {key for _, key in memory}
    assert len(set(order)) == C
    assert len(memory) == C * K
    assert len(keys) == K
    assert len(set(memory.values())) == C * K
    asked, groups, now = [], [], None
    while t < task.length:
        if inputs[t] == 0:
            assert labels[t] == IGNORE
            assert context[t] == (-1 if now is None else now)
            t += 1
        elif inputs[t] <= task.pool:
            now = inputs[t]
            groups.append(now)
            assert context[t] == now
            assert inputs[t + 1] in keys, "a context's token stands before its first key"
            t += 1
        else:
            assert labels[t] == memory[now, inputs[t]]
            assert context[t] == now
            asked.append((now, inputs[t]))
            assert inputs[t + 1] == 0 if t + 1 < task.length else True
            t += 2
    assert sorted(groups) == sorted(order)
    assert sorted(asked) == sorted(memory)
    return order, groups, asked


@pytest.mark.parametrize("task", SIZES, ids=str)
def test_every_example_makes_sense(task):
    examples = task.examples(300, "train", seed=1)
    assert examples.inputs.dtype == examples.labels.dtype == torch.int64
    rows = zip(examples.inputs.tolist(), examples.labels.tolist(), examples.context.tolist(), strict=True)
    orders = [read(task, *row) for row in rows]
    first = [order[0] for order, _, _ in orders]
    same = [order == groups for order, groups, _ in orders]
    assert len(set(first)) == task.pool, "contexts come in random order"
    assert 0 < sum(same) < len(same), "and are asked in another"
    written = [[k for c, k in asked if c == groups[0]] for _, groups, asked in orders]
    assert any(keys != sorted(keys) for keys in written)


def test_the_papers_size():
    task = CDAR()
    assert (task.vocab_size, task.num_contexts, task.num_keys, task.length) == (8192, 4, 32, 1024)
    assert task.num_slots == 380
    assert 4 * 65 + 4 + 2 * 380 == 1024
    assert task.plateau == 0.25
    examples = task.examples(600, "train")
    for row in range(3):
        read(task, *(part[row].tolist() for part in (examples.inputs, examples.labels, examples.context)))
    at = (examples.labels != IGNORE).nonzero()[:, 1].double()
    assert at.min() == 261
    quartiles = at.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    torch.testing.assert_close(quartiles, torch.tensor([330.0, 443, 649]).double(), atol=6, rtol=0)
    assert abs((examples.inputs == 0).double().mean() - 0.62) < 0.005


def test_seeds_splits_and_counts():
    task = SIZES[1]
    a = task.examples(700, "train", seed=3)
    state = torch.get_rng_state()
    torch.manual_seed(99)
    b = task.examples(520, "train", seed=3)
    torch.set_rng_state(state)
    assert torch.equal(a.inputs[:520], b.inputs)
    assert torch.equal(a.labels[:520], b.labels)
    assert len(b) == 520
    seen = {tuple(row) for row in a.inputs.tolist()}
    assert len(seen) == 700
    for other in (task.examples(700, "test", seed=3), task.examples(700, "train", seed=4)):
        assert seen.isdisjoint(map(tuple, other.inputs.tolist()))


def test_drawing_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    SIZES[0].examples(10, "train")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 519}, "length must be at least 520 for 4 contexts of 32 keys, got 519"),
        (
            {"vocab_size": 100},
            "vocab_size must be even, with 32 keys beside 4 contexts in its lower half and 128",
        ),
        ({"vocab_size": 8191}, "vocab_size must be even"),
        ({"num_keys": 0}, "num_contexts and num_keys must be at least 1, got 4 and 0"),
        ({"context_pool": 3}, "context_pool must be at least num_contexts = 4, got 3"),
    ],
)
def test_impossible_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        CDAR(**arguments)


def test_the_shortest_length_is_possible():
    task = CDAR(length=520)
    example = task.examples(1, "train")
    read(task, example.inputs[0].tolist(), example.labels[0].tolist(), example.context[0].tolist())


def test_a_data_loader_takes_them():
    examples = SIZES[0].examples(10, "train")
    inputs, labels = next(iter(torch.utils.data.DataLoader(examples, batch_size=4)))
    assert torch.equal(inputs, examples.inputs[:4])
    assert torch.equal(labels, examples.labels[:4])
    assert len(list(examples)) == 10


def test_no_examples():
    with pytest.raises(ValueError, match="count must be at least 1, got 0"):
        SIZES[0].examples(0, "train")
