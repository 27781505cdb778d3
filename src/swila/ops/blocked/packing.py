"""Which tokens make up each chunk, for batches and packed sequences alike."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from swila.ops.call import Inputs
from swila.ops.validation import sequence_bounds


class Tokens(NamedTuple):
    """C tokens of each of n sequences: one chunk of a batch, or of such packed sequences as have about as much left.

    Where ``padding`` is True the sequence has ended. Padding is a token of zeros with closed gates, which changes
    nothing: its error is zero, its learning rate is zero, and it keeps the priors it finds.
    """

    rows: Tensor  # [n, C], positions in the flattened [B T, ...] inputs
    padding: Tensor | None  # [n, C], None where there is none
    sequences: slice  # which, in the order of the plan
    ended: slice  # those of them that have no more tokens after these
    kept: slice | None  # where the states at the start of these tokens are kept; None if they are the initial ones

    def take(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Gather ``x [B T, H, ...]`` into ``[n H, C, ...]``."""
        heads = torch.arange(x.shape[1], device=x.device)
        chunk = x[self.rows.unsqueeze(1), heads[:, None]].to(dtype)
        if self.padding is not None:
            chunk.masked_fill_(self.padding[(slice(None), None, ..., *[None] * (chunk.ndim - 3))], 0)
        return chunk.flatten(0, 1)

    def put(self, x: Tensor, chunk: Tensor) -> None:
        """Scatter ``chunk [n H, C, ...]`` into ``x [B T, H, ...]``, padding left out."""
        chunk = chunk.unflatten(0, (-1, x.shape[1])).transpose(1, 2).to(x.dtype)
        if self.padding is None:
            x[self.rows] = chunk
        else:
            x[self.rows[~self.padding]] = chunk[~self.padding]


class Plan(NamedTuple):
    """All chunks in order. Sequences stand longest first, so that those with tokens left are always a prefix."""

    order: Tensor  # [N], which sequence stands where
    chunks: list[Tokens]


def plan(x: Inputs, longest: int) -> Plan:
    """Cut into chunks of ``longest`` tokens, or fewer where the sequences are shorter (powers of two with a decay)."""
    return _plan_batch(x, longest) if x.cu_seqlens is None else _plan_packed(x, longest)


def _plan_batch(x: Inputs, longest: int) -> Plan:
    """Rows of the same length: all on the device, so that a CUDA graph can capture it."""
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
            goes_on = sum(count > C for count in left[here])
            chunks.append(
                Tokens(
                    rows.to(device),
                    padding.to(device) if padding.any() else None,
                    here,
                    slice(first + goes_on, first + n),
                    slice(kept, kept + n) if begin > 0 else None,
                )
            )
            kept += n if begin > 0 else 0
            first += n
    return Plan(order.to(device), chunks)


def _groups(counts: list[int]) -> list[int]:
    """Sizes of the groups to compute together: all, unless padding to the longest would more than double the tokens."""
    if len(counts) * counts[0] <= 2 * sum(counts):
        return [len(counts)]
    return [len(list(group)) for _, group in groupby(counts, key=_power_of_two)]


def _power_of_two(count: int) -> int:
    """The least one that is no smaller."""
    return 1 << (count - 1).bit_length()
