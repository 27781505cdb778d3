"""The context of one call of a layer."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from swila.layers.joint import Projections


class CallContext(NamedTuple):
    """Arguments of a call that every part of a layer needs, besides the tokens.

    Attributes:
        cu_seqlens: Boundaries of packed sequences, int ``[N + 1]``, or None.
        return_state: Whether to return the layer's state.
        alive: None, or in a decode step that updates the state in place, the rows to update, bool ``[B]``. The state of
            the other rows stays bit-identical.
        projections: The projections of the layer's input, or None before the layer has computed them.
    """

    cu_seqlens: Tensor | None = None
    return_state: bool = False
    alive: Tensor | None = None
    projections: Projections | None = None


def per_row(values: Tensor, x: Tensor) -> Tensor:
    """Reshape ``values [B]``, one per row, to broadcast over ``x [B, ...]``."""
    return values.view(-1, *[1] * (x.ndim - 1))
