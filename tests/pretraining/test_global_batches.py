"""Batches are a function of the step, whatever the number of ranks and the size of micro-batches."""

import pytest
import torch
from small_runs import LENGTH, sequences_of

from swila.data import ShuffledSequences
from swila.pretraining.batches import Batches, largest_divisor

B = 8
PACKINGS = ("stream", "documents")


@pytest.fixture(params=PACKINGS)
def order(request, data):
    return ShuffledSequences(sequences_of(data, packing=request.param), 3)


def rows(tokens):
    """Inputs and labels of a micro-batch, one sequence a row."""
    return torch.stack([tokens.input_ids.view(-1, LENGTH), tokens.labels.view(-1, LENGTH)], 1)


def test_an_update_takes_the_next_positions_of_the_shuffled_order(order):
    batches = Batches(order, B, 4)
    for step in (0, 1, 17):
        batch = batches.batch(step)
        assert batch.start == step * B
        assert batch.indices == order.indices(step * B, step * B + B)
        assert batch == batches.batch(step), "a second call gives the same batch"
    assert batches.batch(0).indices != batches.batch(1).indices


def test_a_batch_reaches_into_the_next_epoch(order):
    step = len(order) // B
    batch = Batches(order, B, 4).batch(step)
    left = len(order) - step * B
    assert 0 < left < B
    whole = Batches(order, len(order), 4)
    assert batch.indices[:left] == whole.batch(0).indices[-left:]
    assert batch.indices[left:] == whole.batch(1).indices[: B - left]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("micro_batch", [1, 2, 3, 4, 8, 100])
def test_ranks_and_micro_batches_together_are_the_batch_in_order(order, ranks, micro_batch):
    step = 2
    everything, positions = [], []
    for rank in range(ranks):
        batches = Batches(order, B, micro_batch, rank, ranks)
        batch = batches.batch(step)
        mine = list(batches.micro_batches(batch))
        assert all(len(rows(micro.tokens)) == batches.micro_batch for micro in mine)
        assert len(mine) * batches.micro_batch == B // ranks
        positions += [micro.first + i for micro in mine for i in range(batches.micro_batch)]
        everything += [rows(micro.tokens) for micro in mine]
    whole = order.batch(batch.indices)
    assert torch.equal(torch.cat(everything), rows(whole))
    assert positions == list(range(step * B, step * B + B))
    assert batch.labels == (whole.labels != -100).sum()


def test_labels_of_packed_documents_are_fewer_than_positions(data):
    counts = [Batches(ShuffledSequences(sequences_of(data, packing=p), 3), B, 4).batch(0).labels for p in PACKINGS]
    assert counts[0] == B * LENGTH > counts[1]


@pytest.mark.parametrize(("batch_size", "ranks"), [(8, 3), (2, 4), (9, 2)])
def test_the_batch_must_be_a_multiple_of_the_ranks(order, batch_size, ranks):
    with pytest.raises(ValueError, match=f"data.batch_size must be a multiple of the {ranks} ranks, got {batch_size}"):
        Batches(order, batch_size, 1, 0, ranks)


@pytest.mark.parametrize(
    ("number", "most", "expected"),
    [(12, 5, 4), (12, 4, 4), (12, 12, 12), (12, 100, 12), (7, 6, 1), (1, 8, 1), (64, 48, 32), (6, 1, 1)],
)
def test_largest_divisor(number, most, expected):
    assert largest_divisor(number, most) == expected
