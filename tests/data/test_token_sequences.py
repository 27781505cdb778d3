"""Sequences of a stream and of packed documents contain the tokens that they should."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swila.data import PackedSequences, StreamSequences, TokenData, open_sequences
from swila.data.packing import plan_packing


@pytest.mark.parametrize("length", [1, 3, 6, 17, 30])
def test_stream_equals_slices_across_shards(token_data, length):
    split = token_data([5, 1, 7, 3, 3, 12], shard_tokens=6).split("train")
    stream = torch.arange(1, 32)
    sequences = StreamSequences(split, length)
    assert len(sequences) == 30 // length
    order = list(reversed(range(len(sequences))))
    batch = sequences.batch(order)
    assert batch.cu_seqlens is None
    assert batch.input_ids.dtype == batch.labels.dtype == torch.int64
    for row, index in enumerate(order):
        assert torch.equal(batch.input_ids[row], stream[index * length : (index + 1) * length])
        assert torch.equal(batch.labels[row], stream[index * length + 1 : (index + 1) * length + 1])
    assert sequences.count_labels(order) == batch.labels.numel()


def test_stream_needs_one_token_more_than_the_length(token_data):
    split = token_data([5, 3]).split("train")
    assert len(StreamSequences(split, 7)) == 1
    with pytest.raises(ValueError, match="length must be at most 7, because the split 'train' has 8 tokens, got 8"):
        StreamSequences(split, 8)


@pytest.mark.parametrize("packing", ["stream", "documents"])
def test_wrong_arguments(token_data, packing):
    split = token_data([5, 3]).split("train")
    with pytest.raises(ValueError, match="length must be positive, got 0"):
        open_sequences(split, 0, packing)
    sequences = open_sequences(split, 3, packing)
    for index in (-1, len(sequences)):
        for method in (sequences.batch, sequences.count_labels):
            with pytest.raises(ValueError, match=f"within the {len(sequences)} sequences, got {index}"):
                method([index])


def test_open_sequences(token_data):
    split = token_data([5, 3]).split("train")
    assert isinstance(open_sequences(split, 4, "stream"), StreamSequences)
    assert isinstance(open_sequences(split, 4, "documents"), PackedSequences)
    with pytest.raises(ValueError, match="packing must be one of stream, documents, got 'best'"):
        open_sequences(split, 4, "best")


def check_packed(sequences, lengths, T):
    """Every token of every document occurs once, with its label and bounds."""
    batch = sequences.batch(range(len(sequences)))
    shape = (1, len(sequences) * T)
    assert batch.input_ids.shape == batch.labels.shape == shape
    assert batch.input_ids.dtype == batch.labels.dtype == torch.int64
    assert batch.cu_seqlens.dtype == torch.int32
    tokens, labels, bounds = batch.input_ids[0].tolist(), batch.labels[0].tolist(), batch.cu_seqlens.tolist()
    assert bounds[0] == 0
    assert bounds[-1] == shape[1]
    assert all(a < b for a, b in itertools.pairwise(bounds))
    assert set(range(0, shape[1] + 1, T)) <= set(bounds)

    ends = np.cumsum([1, *lengths]).tolist()
    expected = {}  # first token of a piece -> its tokens and labels
    for first, end in itertools.pairwise(ends):
        for start in range(first, end, T):
            stop = min(start + T, end)
            after = [token if token < end else -100 for token in range(start + 1, stop + 1)]
            expected[start] = list(range(start, stop)), after
    free = 0
    for a, b in itertools.pairwise(bounds):
        if tokens[a] == 0:
            assert tokens[a:b] == [0] * (b - a)
            assert labels[a:b] == [-100] * (b - a)
            assert b % T == 0
            free += b - a
        else:
            assert (tokens[a:b], labels[a:b]) == expected.pop(tokens[a])
    assert not expected
    assert sequences.free == pytest.approx(free / shape[1])
    assert sequences.count_labels(range(len(sequences))) == sum(label != -100 for label in labels)


@settings(max_examples=40, deadline=None)
@given(
    T=st.integers(1, 9),
    shapes=st.lists(st.sampled_from(["1", "T", "T+1", "2T+1", "3T", "small", "any"]), min_size=1, max_size=30),
    data=st.data(),
)
def test_packed_sequences_hold_every_token_once(tmp_path_factory, T, shapes, data):
    from swila.data import write_tokens

    sizes = {"1": 1, "T": T, "T+1": T + 1, "2T+1": 2 * T + 1, "3T": 3 * T}
    lengths = [
        sizes.get(shape) or data.draw(st.integers(1, T if shape == "small" else 4 * T), label="length")
        for shape in shapes
    ]
    path = tmp_path_factory.mktemp("packed")
    (path / "t.json").write_text("{}")
    ends = np.cumsum([1, *lengths])
    documents = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    write_tokens(path, {"train": documents}, path / "t.json", 60_000, shard_tokens=data.draw(st.integers(1, 50)))
    check_packed(PackedSequences(TokenData(path).split("train"), T), lengths, T)


def test_packed_batch_in_any_order(token_data):
    sequences = PackedSequences(token_data([5, 12, 3, 4, 2, 9]).split("train"), 8)
    together = sequences.batch([2, 0])
    for row, index in enumerate((2, 0)):
        alone = sequences.batch([index])
        part = slice(row * 8, row * 8 + 8)
        assert torch.equal(together.input_ids[:, part], alone.input_ids)
        assert torch.equal(together.labels[:, part], alone.labels)
    assert sequences.count_labels([2, 0]) == (together.labels != -100).sum()


def test_best_fit_takes_the_fullest_sequence_that_suffices():
    # 4 fills the sequence that 6 began, 3 the one that 7 began, although neither is the last one opened.
    plan = plan_packing(np.cumsum([0, 3, 7, 4, 6]), 10)
    sequences = [plan.pieces["length"][a:b].tolist() for a, b in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)]
    assert sequences == [[7, 3], [6, 4]]
    plan = plan_packing(np.cumsum([0, 5, 8, 2, 7]), 10)
    assert np.diff(plan.offsets).tolist() == [2, 1, 1]
    assert plan.pieces["length"].tolist() == [8, 2, 7, 5]


def test_packing_in_windows_wastes_little_and_is_fast():
    lengths = np.clip(np.random.default_rng(0).lognormal(6.3, 1.1, 200_000), 1, 200_000).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    plan = plan_packing(bounds, 4096)
    total = np.add.reduceat(plan.pieces["length"].astype(np.int64), plan.offsets[:-1])
    assert total.max() <= 4096
    assert plan.pieces["length"].sum() == lengths.sum()
    assert len(total) * 4096 < 1.001 * lengths.sum()
    # Windows are independent, so that the plan of more data begins with that of less.
    first = plan_packing(bounds[: 65_536 + 1], 4096)
    assert np.array_equal(plan.offsets[: len(first.offsets)], first.offsets)
    assert np.array_equal(plan.pieces[: len(first.pieces)], first.pieces)


def test_plan_is_kept_beside_the_data(token_data, monkeypatch):
    from swila.data import packing

    lengths = [5, 12, 3, 4, 2, 9]
    data = token_data(lengths)
    PackedSequences(data.split("train"), 8)
    file = data.path / "packed-train-8.bin"
    good = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(packing, "plan_packing", None)
        check_packed(PackedSequences(data.split("train"), 8), lengths, 8)
    for bad in (good[:-1], good[:40], b"", b"x" * len(good)):
        file.write_bytes(bad)
        check_packed(PackedSequences(data.split("train"), 8), lengths, 8)
        assert file.read_bytes() == good
    # Other data in the same place: the plan does not apply.
    other = [3, 30, 1, 1]
    check_packed(PackedSequences(token_data(other).split("train"), 8), other, 8)
    assert not list(data.path.glob("*.tmp"))


def test_plan_stays_in_memory_if_it_cannot_be_written(token_data, monkeypatch):
    from swila.data import packing

    def refuse(path, *parts):
        raise PermissionError(path)

    monkeypatch.setattr(packing, "write_atomically", refuse)
    data = token_data([5, 12, 3])
    check_packed(PackedSequences(data.split("train"), 8), [5, 12, 3], 8)
    assert not list(data.path.glob("packed*"))
