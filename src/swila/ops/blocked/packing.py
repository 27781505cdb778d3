"""Which tokens make up each chunk, for batches and packed sequences alike."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from swila.ops.call import Inputs


class Tokens(NamedTuple):
    """The tokens of one chunk of the ``n`` sequences that reach it.

    ``rows [n, C]`` are positions in the flattened ``[B * T, ...]`` inputs; where ``padding [n, C]`` is True the
    sequence has ended. Padding is a token of zeros with closed gates, which changes nothing: its error is zero, its
    learning rate is zero, and it keeps the priors it finds.
    """

    rows: Tensor
    padding: Tensor | None

    def take(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Gather ``x [B * T, H, ...]`` into ``[n * H, C, ...]``."""
        heads = torch.arange(x.shape[1], device=x.device)
        chunk = x[self.rows.unsqueeze(1), heads[:, None]].to(dtype)
        if self.padding is not None:
            chunk.masked_fill_(self.padding[(slice(None), None, ..., *[None] * (chunk.ndim - 3))], 0)
        return chunk.flatten(0, 1)

    def put(self, x: Tensor, chunk: Tensor) -> None:
        """Scatter ``chunk [n * H, C, ...]`` into ``x [B * T, H, ...]``, padding left out."""
        chunk = chunk.unflatten(0, (-1, x.shape[1])).transpose(1, 2).to(x.dtype)
        if self.padding is None:
            x[self.rows] = chunk
        else:
            x[self.rows[~self.padding]] = chunk[~self.padding]


class Plan(NamedTuple):
    """All chunks in order; sequences stand longest first, so those that reach a chunk are a prefix."""

    order: Tensor
    chunks: list[Tokens]

    def kept(self, i: int) -> slice:
        """Where the states at the start of chunk ``i > 0`` lie among those at the start of chunks 1, 2, ..."""
        begin = sum(tokens.rows.shape[0] for tokens in self.chunks[1:i])
        return slice(begin, begin + self.chunks[i].rows.shape[0])


def plan(x: Inputs, longest: int) -> Plan:
    """Chunks of ``longest`` tokens (a power of two), shorter ones where every sequence is."""
    B, T = x.q.shape[:2]
    device = x.q.device
    bounds = torch.arange(0, B * T + 1, T) if x.cu_seqlens is None else x.cu_seqlens.cpu().long()
    lengths, order = bounds.diff().sort(descending=True, stable=True)
    starts = bounds[:-1][order]
    C = min(longest, 1 << (int(lengths[0]) - 1).bit_length())
    chunks = []
    for begin in range(0, int(lengths[0]), C):
        n = int((lengths > begin).sum())
        position = torch.arange(begin, begin + C)
        padding = position >= lengths[:n, None]
        rows = starts[:n, None] + position.minimum(lengths[:n, None] - 1)
        chunks.append(Tokens(rows.to(device), padding.to(device) if padding.any() else None))
    return Plan(order.to(device), chunks)
