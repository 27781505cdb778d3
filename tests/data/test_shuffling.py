"""The order of sequences: a permutation in every epoch, and a function of seed and position alone."""

import numpy as np
import pytest

from swila.data import PackedSequences, ShuffledSequences, StreamSequences
from swila.data.permutation import permute

PINNED = [132, 827, 946, 581, 196, 761, 452, 832]
PINNED_LARGE = [867175581856, 596512449520]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4096, 4097, 100_003])
def test_a_bijection(n):
    images = permute(np.arange(n), n, seed=3, epoch=1)
    assert images.dtype == np.int64
    assert np.array_equal(np.sort(images), np.arange(n))


def test_a_subset_has_the_images_of_the_whole():
    whole = permute(np.arange(1000), 1000, seed=0, epoch=0)
    assert np.array_equal(permute(np.array([999, 3, 500]), 1000, seed=0, epoch=0), whole[[999, 3, 500]])


def test_values_are_the_same_everywhere():
    assert permute(np.arange(8), 1000, seed=1, epoch=0).tolist() == PINNED
    assert permute(np.array([0, 10**12]), 10**12 + 1, seed=2**63, epoch=7).tolist() == PINNED_LARGE


def test_seeds_and_epochs_have_orders_of_their_own():
    n = 5000
    orders = [permute(np.arange(n), n, seed, epoch) for seed in range(4) for epoch in range(4)]
    for i, a in enumerate(orders):
        for b in orders[:i]:
            assert (a == b).sum() < 12  # of random permutations one element is fixed on average


@pytest.mark.parametrize("n", [4096, 5000, 60_001])
def test_no_visible_order(n):
    images = permute(np.arange(n), n, seed=5, epoch=0)
    fixed, steps = (images == np.arange(n)).sum(), np.diff(images)
    assert fixed < 8
    assert (np.abs(steps) == 1).sum() < 12
    assert abs(np.corrcoef(np.arange(n), images)[0, 1]) < 4 / np.sqrt(n)
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 4 / np.sqrt(n)
    # Every eighth of the positions has its share of every eighth of the sequences.
    table = np.histogram2d(np.arange(n), images, bins=8)[0]
    expected = n / 64
    assert ((table - expected) ** 2 / expected).sum() < 49 + 5 * np.sqrt(2 * 49)


def test_positions_run_through_epochs(token_data):
    sequences = StreamSequences(token_data([101]).split("train"), 10)
    shuffled = ShuffledSequences(sequences, seed=4)
    assert len(shuffled) == 10
    positions = shuffled.indices(0, 35)
    epochs = [positions[i : i + 10] for i in range(0, 30, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert all(type(index) is int for index in positions)
    for start in range(35):
        for stop in range(start, 35):
            assert shuffled.indices(start, stop) == positions[start:stop]
    assert shuffled.indices(10**12, 10**12 + 10) != epochs[0]
    for start, stop in ((-1, 2), (3, 2)):
        with pytest.raises(ValueError, match="0 ≤ start ≤ stop"):
            shuffled.indices(start, stop)


def test_batches_are_those_of_the_sequences(token_data):
    split = token_data([5, 12, 3, 4, 2, 9]).split("train")
    for sequences in (StreamSequences(split, 8), PackedSequences(split, 8)):
        shuffled = ShuffledSequences(sequences, seed=0)
        batch, expected = shuffled.batch([1, 0]), sequences.batch([1, 0])
        assert batch.input_ids.equal(expected.input_ids)
        assert shuffled.count_labels([1, 0]) == sequences.count_labels([1, 0])
