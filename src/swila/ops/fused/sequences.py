"""The sequences of packed tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Sequences(NamedTuple):
    """The sequences of packed tokens.

    Attributes:
        row: Index of the sequence of each token, ``[T]``.
        position: Position of each token in its sequence, ``[T]``.
        lengths: Lengths of the sequences, ``[N]``.
    """

    row: Tensor
    position: Tensor
    lengths: Tensor


def sequences(cu_seqlens: Tensor, T: int) -> Sequences:
    """Return the sequences of T packed tokens: ``cu_seqlens`` 0 2 6 gives row 0 0 1 1 1 1, position 0 1 0 1 2 3."""
    time = torch.arange(T, device=cu_seqlens.device)
    row = torch.searchsorted(cu_seqlens[1:].contiguous(), time, right=True)
    row = row.clamp_max(len(cu_seqlens) - 2)  # unchecked bounds must not cause an illegal access on the GPU
    return Sequences(row, time - cu_seqlens[row], cu_seqlens.diff())
