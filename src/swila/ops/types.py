"""State, statistics and output of the switching delta rule."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SwitchingState(NamedTuple):
    """The recurrent state carried between calls; float32, or float64 for float64 inputs.

    Attributes:
        W: Fast weights, one regressor ``w_jd`` per mixture and output dimension, ``[N, H, J, V, K]``.
        r: Responsibilities of the last token, ``[N, H, J, V]``; None without a ``key_gate``.
        rho: Query mix of the last token, ``[N, H, J, V]``; None without a ``query_gate``.

    ``N`` is the batch size, or the number of packed sequences.
    """

    W: Tensor
    r: Tensor | None = None
    rho: Tensor | None = None


class RoutingStats(NamedTuple):
    """Means over all tokens; load balancing and router diagnostics are computed from them.

    Attributes:
        key_usage: Mean of the responsibilities ``r`` over batch and time, ``[H, J, V]``.
        key_entropy: Mean per-token entropy of ``r`` in nats, ``[H, V]``.
        query_usage: Mean of the query mix ``rho``, ``[H, J, V]``.
        query_entropy: Mean per-token entropy of ``rho`` in nats, ``[H, V]``.
    """

    key_usage: Tensor
    key_entropy: Tensor
    query_usage: Tensor
    query_entropy: Tensor


class SwitchingOutput(NamedTuple):
    """Result of the operation: ``output [B, T, H, V]``, the final state and the statistics (None if not requested)."""

    output: Tensor
    state: SwitchingState | None = None
    stats: RoutingStats | None = None
