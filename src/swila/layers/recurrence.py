"""Calls of the operation by layers: from a cached state, with the decode step where possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swila.layers.context import CallContext
from swila.ops import SwitchingOutput, SwitchingState, switching_delta_rule, switching_delta_rule_step


def run_recurrence(
    operands: Mapping[str, Any], state: Any, context: CallContext, routing_stats: bool = False, **options: Any
) -> SwitchingOutput:
    """Run :func:`swila.switching_delta_rule`, or :func:`swila.switching_delta_rule_step` for a single token.

    Args:
        operands: The arguments that have a time axis, by name.
        state: Parts of a :class:`~swila.SwitchingState`, as a cache holds them, or None.
        context: Context of the call.
        routing_stats: Whether to return routing statistics; the decode step has none.
        **options: ``decay_order``, ``normalize`` and ``backend``.
    """
    options["initial_state"] = None if state is None else SwitchingState(*state)
    if context.alive is not None:
        return switching_delta_rule_step(**operands, **options, inplace=True, alive=context.alive)
    options["return_state"] = context.return_state
    if operands["q"].shape[1] == 1 and context.cu_seqlens is None and not routing_stats:
        return switching_delta_rule_step(**operands, **options)
    return switching_delta_rule(**operands, **options, cu_seqlens=context.cu_seqlens, routing_stats=routing_stats)
