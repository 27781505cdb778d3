"""Assignment of tokens to chunks, for batches and packed sequences."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from swila.ops.call import Inputs
from swila.ops.validation import sequence_bounds


class Tokens(NamedTuple):
    """C tokens of each of n sequences: one chunk of a batch, or of packed sequences of similar remaining length.

    ``padding`` is True after the end of a sequence. A padding token has zero inputs and closed gates, which leave the
    state unchanged: its error and its learning rate are zero, and it keeps the priors.
    """

    rows: Tensor  # [n, C], positions in the flattened [B T, ...] inputs
    padding: Tensor | None  # [n, C], or None
    sequences: slice  # which sequences, in the order of the plan
    ended: slice  # the sequences that end in this chunk
    kept: slice | None  # rows of the saved states at the chunk's start; None for initial states

    def take(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Gather ``x [B T, H, ...]`` into ``[n H, C, ...]``."""
        heads = torch.arange(x.shape[1], device=x.device)
        chunk = x[self.rows.unsqueeze(1), heads[:, None]].to(dtype)
        if self.padding is not None:
            chunk.masked_fill_(self.padding[(slice(None), None, ..., *[None] * (chunk.ndim - 3))], 0)
        return chunk.flatten(0, 1)

    def put(self, x: Tensor, chunk: Tensor) -> None:
        """Scatter ``chunk [n H, C, ...]`` into ``x [B T, H, ...]``, without the padding."""
        chunk = chunk.unflatten(0, (-1, x.shape[1])).transpose(1, 2).to(x.dtype)
        if self.padding is None:
            x[self.rows] = chunk
        else:
            x[self.rows[~self.padding]] = chunk[~self.padding]


class Plan(NamedTuple):
    """All chunks in order. Sequences are sorted longest first, so that the unfinished ones are always a prefix."""

    order: Tensor  # [N], indices of the sequences, longest first
    chunks: list[Tokens]


def plan(x: Inputs, longest: int) -> Plan:
    """Chunks of at most ``longest`` tokens; with a decay, their sizes are powers of two."""
    return _plan_batch(x, longest) if x.cu_seqlens is None else _plan_packed(x, longest)


def _plan_batch(x: Inputs, longest: int) -> Plan:
    """Plan for sequences of equal length, computed on the device so that a CUDA graph can capture it."""
    device, (B, T) = x.q.device, x.q.shape[:2]
    order, chunks = torch.arange(B, device=device), []
    for i, begin in enumerate(range(0, T, longest)):
        left = T - begin
        C = min(longest, left if x.log_decay is None else _power_of_two(left))
        position = begin + torch.arange(C, device=device)
        chunks.append(
            Tokens(
                order[:, None] * T + position.clamp_max(T - 1),
                (position >= T).expand(B, C) if left < C else None,
                slice(0, B),
                slice(0 if left <= C else B, B),
                slice((i - 1) * B, i * B) if i > 0 else None,
            )
        )
    return Plan(order, chunks)


def _plan_packed(x: Inputs, longest: int) -> Plan:
    device, bounds = x.q.device, torch.tensor(sequence_bounds(x), device="cpu")
    lengths, order = bounds.diff().sort(descending=True, stable=True)
    starts = bounds[:-1][order]
    chunks, kept = [], 0
    for begin in range(0, int(lengths[0]), longest):
        left = (lengths[lengths > begin] - begin).tolist()
        first = 0
        for n in _groups([min(count, longest) for count in left]):
            C = min(longest, left[first] if x.log_decay is None else _power_of_two(left[first]))
            here = slice(first, first + n)
            position = begin + torch.arange(C, device="cpu")
            padding = position >= lengths[here, None]
            rows = starts[here, None] + position.minimum(lengths[here, None] - 1)
            unfinished = sum(count > C for count in left[here])
            chunks.append(
                Tokens(
                    rows.to(device),
                    padding.to(device) if padding.any() else None,
                    here,
                    slice(first + unfinished, first + n),
                    slice(kept, kept + n) if begin > 0 else None,
                )
            )
            kept += n if begin > 0 else 0
            first += n
    return Plan(order.to(device), chunks)


def _groups(counts: list[int]) -> list[int]:
    """Sizes of the groups computed together: one group, unless padding would more than double the tokens."""
    if len(counts) * counts[0] <= 2 * sum(counts):
        return [len(counts)]
    return [len(list(group)) for _, group in groupby(counts, key=_power_of_two)]


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least ``count``."""
    return 1 << (count - 1).bit_length()
