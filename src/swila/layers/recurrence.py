"""A call of our operation as layers make it: from a cached state on, and by the way made for decoding where it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from swila.ops import SwitchingOutput, SwitchingState, switching_delta_rule, switching_delta_rule_step


def run_recurrence(
    operands: Mapping[str, Any],
    state: Any,
    cu_seqlens: Tensor | None,
    return_state: bool,
    routing_stats: bool = False,
    **options: Any,
) -> SwitchingOutput:
    """:func:`swila.switching_delta_rule` on ``operands``, or for one token its step.

    Args:
        operands: the arguments that have a time axis, by name.
        state: the parts of a :class:`~swila.SwitchingState` as a cache gives them back, or None.
        cu_seqlens: bounds of packed sequences.
        return_state: whether to return the state after the last token.
        routing_stats: whether to return routing statistics.
        options: ``decay_order``, ``normalize``, ``backend``.
    """
    options |= {"initial_state": None if state is None else SwitchingState(*state), "return_state": return_state}
    if operands["q"].shape[1] == 1 and cu_seqlens is None and not routing_stats:
        return switching_delta_rule_step(**operands, **options)
    return switching_delta_rule(**operands, **options, cu_seqlens=cu_seqlens, routing_stats=routing_stats)
