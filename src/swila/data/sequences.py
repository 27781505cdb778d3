"""Training sequences: the stream cut at the length, and the batches that every kind of sequence gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from swila.data.token_data import TokenSplit

if TYPE_CHECKING:
    from swila.data.packing import PackedSequences

NO_LABEL = -100  # what torch's cross entropy ignores
PACKINGS = ("stream", "documents")


class TokenBatch(NamedTuple):
    """A batch of sequences.

    Attributes:
        input_ids: Tokens, int64 ``[n, T]``; packed documents ``[1, n T]``.
        labels: The next token of each position, already shifted, int64 of the same shape; -100 where there is none.
        cu_seqlens: Bounds of packed documents, int32 ``[N + 1]``, the first is 0 and the last n T; None for a stream.
    """

    input_ids: Tensor
    labels: Tensor
    cu_seqlens: Tensor | None


class StreamSequences:
    """The stream of all documents, cut at the length.

    Sequence i is the tokens ``[i T, i T + T]`` of the stream: the first T are the inputs, the last T the labels. So the
    last token of a sequence is the first of the next, and every token but the first of the stream is a label once,
    except for less than T tokens at the end of the stream. Documents run into one another.

    Args:
        split: The tokens.
        length: Length T of a sequence.
    """

    def __init__(self, split: TokenSplit, length: int) -> None:
        check_length(length)
        if split.tokens < length + 1:
            raise ValueError(
                f"length must be at most {split.tokens - 1}, because the split {split.name!r} has {split.tokens} tokens"
                f", got {length}"
            )
        self.split, self.length = split, length

    def __len__(self) -> int:
        """Return the number of sequences."""
        return (self.split.tokens - 1) // self.length

    def batch(self, indices: Sequence[int]) -> TokenBatch:
        """Return the sequences with these numbers."""
        check_indices(indices, len(self))
        T = self.length
        tokens = np.empty((len(indices), T + 1), dtype=np.int64)
        for row, index in enumerate(indices):
            tokens[row] = self.split.read(index * T, index * T + T + 1)
        both = torch.from_numpy(tokens)
        return TokenBatch(both[:, :-1].contiguous(), both[:, 1:].contiguous(), None)

    def count_labels(self, indices: Sequence[int]) -> int:
        """Return the number of labels of the sequences with these numbers."""
        check_indices(indices, len(self))
        return len(indices) * self.length


def open_sequences(
    split: TokenSplit, length: int, packing: Literal["stream", "documents"]
) -> StreamSequences | PackedSequences:
    """Return the sequences of a split.

    Args:
        split: The tokens.
        length: Length T of a sequence.
        packing: ``"stream"`` for :class:`StreamSequences`, ``"documents"`` for
            :class:`~swila.data.packing.PackedSequences`.
    """
    if packing == "stream":
        return StreamSequences(split, length)
    if packing == "documents":
        from swila.data.packing import PackedSequences

        return PackedSequences(split, length)
    raise ValueError(f"packing must be one of {', '.join(PACKINGS)}, got {packing!r}")


def check_length(length: int) -> None:
    """Raise ValueError unless a length of sequences is positive."""
    if length < 1:
        raise ValueError(f"length must be positive, got {length}")


def check_indices(indices: Sequence[int], count: int) -> None:
    """Raise ValueError unless all numbers of sequences exist; Python's negative indices do not count."""
    for index in indices:
        if not 0 <= index < count:
            raise ValueError(f"indices must be within the {count} sequences, got {index}")
