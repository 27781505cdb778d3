"""What goes into and comes out of the switching delta rule."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SwitchingState(NamedTuple):
    """The recurrent state carried between calls; float32, or float64 for float64 inputs.

    Attributes:
        W: fast weights, one regressor ``w_jd`` per mixture and output dimension, ``[N, H, J, V, K]``.
        r: last responsibilities, ``[N, H, J, V]``; present where a ``key_gate`` is given.
        rho: last query mix, ``[N, H, J, V]``; present where a ``query_gate`` is given.

    ``N`` is the batch size, or the number of packed sequences.
    """

    W: Tensor
    r: Tensor | None = None
    rho: Tensor | None = None


class RoutingStats(NamedTuple):
    """Means over all tokens, from which load balancing and router diagnostics follow.

    Attributes:
        key_usage: mean of the responsibilities ``r`` over batch and time, ``[H, J, V]``.
        key_entropy: mean per-token entropy of ``r`` in nats, ``[H, V]``.
        query_usage: mean of the query mix ``rho``, ``[H, J, V]``.
        query_entropy: mean per-token entropy of ``rho`` in nats, ``[H, V]``.
    """

    key_usage: Tensor
    key_entropy: Tensor
    query_usage: Tensor
    query_entropy: Tensor


class SwitchingOutput(NamedTuple):
    """Result of the operation: ``output [B, T, H, V]``, and state and statistics where asked for."""

    output: Tensor
    state: SwitchingState | None = None
    stats: RoutingStats | None = None
