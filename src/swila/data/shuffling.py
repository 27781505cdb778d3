"""The order of sequences in training, as a function of the position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from swila.data.permutation import permute
from swila.data.sequences import StreamSequences, TokenBatch

if TYPE_CHECKING:
    from swila.data.packing import PackedSequences


class ShuffledSequences:
    """Sequences in random order, without a state: the position alone determines the sequence.

    Position p is in epoch ``p // len``. Each epoch is a permutation of its own of all sequences.

    Args:
        sequences: The sequences.
        seed: Seed of the order.
    """

    def __init__(self, sequences: StreamSequences | PackedSequences, seed: int) -> None:
        self.sequences, self.seed = sequences, seed

    def __len__(self) -> int:
        """Return the number of sequences of an epoch."""
        return len(self.sequences)

    def indices(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the sequences at the positions ``[start, stop)``, across epochs."""
        if not 0 <= start <= stop:
            raise ValueError(f"start and stop must be positions with 0 ≤ start ≤ stop, got {start} and {stop}")
        found: list[int] = []
        n = len(self)
        while start < stop:
            epoch, first = divmod(start, n)
            last = min(stop - epoch * n, n)
            found += permute(np.arange(first, last), n, self.seed, epoch).tolist()
            start = epoch * n + last
        return found

    def batch(self, indices: Sequence[int]) -> TokenBatch:
        """Return the sequences with these numbers."""
        return self.sequences.batch(indices)

    def count_labels(self, indices: Sequence[int]) -> int:
        """Return the number of labels of the sequences with these numbers."""
        return self.sequences.count_labels(indices)
