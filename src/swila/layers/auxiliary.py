"""Auxiliary losses and routing diagnostics of all layers of a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from swila.layers.load_balancing import RoutingDiagnostics


def collect_auxiliary_loss(model: nn.Module) -> Tensor:
    """Return the mean of ``auxiliary_loss()`` over the modules that have an auxiliary loss; 0 if none has.

    It is a mean so that a weight means the same for any number of layers. Each loss is returned once per forward call.
    """
    losses = _given_by(model, "auxiliary_loss")
    if not losses:
        return torch.zeros((), device=next((p.device for p in model.parameters()), None))
    return sum(losses[1:], losses[0]) / len(losses)


def collect_routing_diagnostics(model: nn.Module) -> RoutingDiagnostics | None:
    """Return the mean of ``routing_diagnostics()`` over the modules that have diagnostics; None if none has."""
    found = _given_by(model, "routing_diagnostics")
    if not found:
        return None
    return RoutingDiagnostics(*(sum(parts[1:], parts[0]) / len(parts) for parts in zip(*found, strict=True)))


def _given_by(model: nn.Module, method: str) -> list[Any]:
    """Return the results of the method that are not None, over the modules that have it."""
    found = []
    for module in model.modules():
        if callable(getattr(module, method, None)):
            given = getattr(module, method)()
            if given is not None:
                found.append(given)
    return found
