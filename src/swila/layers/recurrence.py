"""A call of our operation as layers make it: from a cached state on, and by the way made for decoding where it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from swila.layers.context import CallContext, per_row
from swila.ops import SwitchingOutput, SwitchingState, switching_delta_rule, switching_delta_rule_step


def run_recurrence(
    operands: Mapping[str, Any], state: Any, context: CallContext, routing_stats: bool = False, **options: Any
) -> SwitchingOutput:
    """:func:`swila.switching_delta_rule` on ``operands``, or for one token its step.

    Args:
        operands: the arguments that have a time axis, by name.
        state: the parts of a :class:`~swila.SwitchingState` as a cache gives them back, or None.
        context: of the call.
        routing_stats: whether to return routing statistics.
        options: ``decay_order``, ``normalize``, ``backend``.
    """
    options["initial_state"] = None if state is None else SwitchingState(*state)
    if context.alive is not None:
        return _step_in_place(operands, context.alive, options)
    options["return_state"] = context.return_state
    if operands["q"].shape[1] == 1 and context.cu_seqlens is None and not routing_stats:
        return switching_delta_rule_step(**operands, **options)
    return switching_delta_rule(**operands, **options, cu_seqlens=context.cu_seqlens, routing_stats=routing_stats)


def _step_in_place(operands: Mapping[str, Any], alive: Tensor, options: dict[str, Any]) -> SwitchingOutput:
    """A step over the old state. Without a learning rate and a decay the weights of a row stay as they are."""
    state = options["initial_state"]
    still = {name: x * per_row(alive, x) for name, x in operands.items() if name in ("beta", "log_decay")}
    before = [None if part is None else part.clone() for part in state[1:]]
    out = switching_delta_rule_step(**{**operands, **still}, **options, inplace=True)
    for part, old in zip(state[1:], before, strict=True):
        if part is not None and old is not None:
            part.copy_(torch.where(per_row(alive, part), part, old))
    return out
