"""The batches of a run, as a pure function of the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from swila.data import ShuffledSequences, TokenBatch


class MicroBatch(NamedTuple):
    """What a rank computes in one forward call.

    Attributes:
        first: Position of its first sequence in the order of the whole run, the same for any number of ranks.
        tokens: The tokens.
    """

    first: int
    tokens: TokenBatch


@dataclass(frozen=True)
class GlobalBatch:
    """The sequences of one update, over all ranks.

    Attributes:
        start: Position of the first sequence in the order of the whole run.
        indices: Numbers of the sequences in the data.
        labels: Number of labels.
    """

    start: int
    indices: list[int]
    labels: int


class Batches:
    """The share of one rank in every batch.

    Update ``step`` takes the sequences at positions ``[step B, (step + 1) B)`` of the shuffled order. Ranks have
    consecutive parts of them, and micro-batches consecutive parts of those. The data therefore does not depend on the
    number of ranks, and there is no loader state to save.

    Args:
        sequences: Sequences in shuffled order.
        batch_size: Number of sequences of an update, B.
        micro_batch: Most sequences of a forward call.
        rank: Number of the rank.
        ranks: Number of ranks.
    """

    def __init__(
        self, sequences: ShuffledSequences, batch_size: int, micro_batch: int, rank: int = 0, ranks: int = 1
    ) -> None:
        if batch_size % ranks:
            raise ValueError(f"data.batch_size must be a multiple of the {ranks} ranks, got {batch_size}")
        self.sequences, self.batch_size = sequences, batch_size
        self.share = batch_size // ranks
        self.rank, self.micro_batch = rank, largest_divisor(self.share, micro_batch)

    def batch(self, step: int) -> GlobalBatch:
        """Return the sequences of an update, over all ranks."""
        start = step * self.batch_size
        indices = self.sequences.indices(start, start + self.batch_size)
        return GlobalBatch(start, indices, self.sequences.count_labels(indices))

    def micro_batches(self, batch: GlobalBatch) -> Iterator[MicroBatch]:
        """Yield the micro-batches of this rank."""
        begin = self.rank * self.share
        for i in range(begin, begin + self.share, self.micro_batch):
            yield MicroBatch(batch.start + i, self.sequences.batch(batch.indices[i : i + self.micro_batch]))


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most ``most``."""
    return next(divisor for divisor in range(min(most, number), 0, -1) if number % divisor == 0)
