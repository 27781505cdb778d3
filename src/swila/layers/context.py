"""How a call goes over its tokens."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class CallContext(NamedTuple):
    """What every part of a layer must know of a call beside its tokens.

    Attributes:
        cu_seqlens: bounds of packed sequences, int ``[N + 1]``; or None.
        return_state: whether what the layer carries on is wanted.
        alive: None; or, for a decoding step that writes the state over the old one, which rows take it, bool ``[B]``.
            The others keep theirs bit for bit.
    """

    cu_seqlens: Tensor | None = None
    return_state: bool = False
    alive: Tensor | None = None


def per_row(values: Tensor, x: Tensor) -> Tensor:
    """Reshape ``values [B]``, one per row, to broadcast over ``x [B, ...]``."""
    return values.view(-1, *[1] * (x.ndim - 1))
