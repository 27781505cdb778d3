"""The optimizer of every training loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def make_optimizer(
    model: nn.Module, lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> torch.optim.AdamW:
    """Return fused AdamW for all parameters of a model; see :func:`parameter_groups` for the weight decay.

    Args:
        model: The model; if it is sharded, after sharding.
        lr: Learning rate of the first update.
        weight_decay: Weight decay of the parameters that are not exempt.
        betas: Decay rates of the two moments.
        eps: Term added to the denominator.
    """
    return torch.optim.AdamW(parameter_groups(model, weight_decay), lr, betas, eps, fused=True)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters with weight decay, and those without: the ones a module names in ``no_weight_decay``."""
    spared = {id(getattr(m, name)) for m in model.modules() for name in getattr(m, "no_weight_decay", ())}
    decayed = [p for p in model.parameters() if id(p) not in spared]
    exempt = [p for p in model.parameters() if id(p) in spared]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": exempt, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
