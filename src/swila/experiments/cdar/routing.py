"""Where a trained SwiLA layer sends the tokens of a CDAR sequence."""

from __future__ import annotations

import torch

from swila.layers import RoutingTrace, SwiLA
from swila.models import SyntheticModel
from swila.tasks import Examples


def routing(model: SyntheticModel, examples: Examples) -> RoutingTrace:
    """Where the last SwiLA layer of a model sends the tokens of some examples."""
    layer = model.mixers[-1]
    if not isinstance(layer, SwiLA):
        raise ValueError(f"model must end with a SwiLA layer to look at, got {type(layer).__name__}")
    seen: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(examples.inputs)
    handle.remove()
    return layer.trace(seen[0])


def shares_by_context(trace: torch.Tensor, context: torch.Tensor, num_contexts: int) -> torch.Tensor:
    """Mean of a trace ``[B, T, H, J, V]`` over the tokens of each context 1 ... C, ``[C, H, J, V]``."""
    return torch.stack([trace[context == c].mean(0) for c in range(1, num_contexts + 1)])
