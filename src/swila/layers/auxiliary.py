"""Auxiliary losses and diagnostics of all layers of a model, found by walking its modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from swila.layers.load_balancing import RoutingDiagnostics


def collect_auxiliary_loss(model: nn.Module) -> Tensor:
    """The mean of what ``auxiliary_loss()`` returns, over the modules that have one to give; 0 if none has.

    The mean, so that a weight means the same for any number of layers. A loss is handed out once per forward call.
    """
    losses = _given_by(model, "auxiliary_loss")
    if not losses:
        return torch.zeros((), device=next((p.device for p in model.parameters()), None))
    return sum(losses[1:], losses[0]) / len(losses)


def collect_routing_diagnostics(model: nn.Module) -> RoutingDiagnostics | None:
    """The mean of ``routing_diagnostics()`` over the modules that have some; None if none has."""
    found = _given_by(model, "routing_diagnostics")
    if not found:
        return None
    return RoutingDiagnostics(*(sum(parts[1:], parts[0]) / len(parts) for parts in zip(*found, strict=True)))


def _given_by(model: nn.Module, method: str) -> list[Any]:
    """What the method returns in those modules that have it, and something to give."""
    found = []
    for module in model.modules():
        if callable(getattr(module, method, None)):
            given = getattr(module, method)()
            if given is not None:
                found.append(given)
    return found
