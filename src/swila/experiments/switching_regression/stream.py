"""Streams of key-value pairs whose linear map switches."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Stream(NamedTuple):
    """Sequences of pairs whose map switches."""

    keys: Tensor  # [B, T, D], unit norm
    values: Tensor  # [B, T, D]
    context: Tensor  # [B, T], number of the current map
    age: Tensor  # [B, T], tokens since the last switch


def make_stream(
    B: int = 32, T: int = 1024, D: int = 16, contexts: int = 4, run: int = 32, noise: float = 0.1, seed: int = 0
) -> Stream:
    """Draw a stream in which each map lasts between ``run / 2`` and ``3 run / 2`` tokens.

    For example with 2 contexts and a run of 4 the context reads ``0 0 0 1 1 1 1 1 0 0 ...`` and the age
    ``0 1 2 0 1 2 3 4 0 1 ...``.
    """
    generator = torch.Generator().manual_seed(2 * seed)
    maps = 2 * torch.randn(B, contexts, D, D, generator=generator)
    context, age = torch.empty(B, T, dtype=torch.long), torch.empty(B, T, dtype=torch.long)
    for b in range(B):
        t, now = 0, int(torch.randint(contexts, (1,), generator=generator))
        while t < T:
            length = int(torch.randint(max(run // 2, 1), 3 * run // 2 + 1, (1,), generator=generator))
            context[b, t : t + length] = now
            age[b, t : t + length] = torch.arange(min(length, T - t))
            step = int(torch.randint(1, max(contexts, 2), (1,), generator=generator))
            t, now = t + length, (now + step) % contexts
    keys = F.normalize(torch.randn(B, T, D, generator=generator), dim=-1)
    active = maps[torch.arange(B)[:, None], context]
    values = torch.einsum("btij,btj->bti", active, keys) + noise * torch.randn(B, T, D, generator=generator)
    return Stream(keys, values, context, age)
