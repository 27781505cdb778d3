"""AdamW over this rank's parts of the parameters.

The parameters of a sharded model are DTensors. Each operation on many of them costs the host tens of milliseconds,
which a GPU has to wait for. Here the optimizer works on plain tensors that share their memory, and its state becomes
DTensors only in checkpoints, so that a checkpoint can be read by any number of ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from swila.pretraining.recipe import OptimizerRecipe
from swila.training.optimizer import parameter_groups

MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedAdamW:
    """Fused AdamW on the local parts of a model's parameters.

    Args:
        model: The model, sharded or not.
        recipe: Learning rate, weight decay, betas and epsilon.
    """

    def __init__(self, model: nn.Module, recipe: OptimizerRecipe) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            self.parts = {name: nn.Parameter(_local(p)) for name, p in self.parameters.items()}
        names = {id(p): name for name, p in self.parameters.items()}
        groups = [
            {**group, "params": [self.parts[names[id(p)]] for p in group["params"]]}
            for group in parameter_groups(model, recipe.weight_decay)
        ]
        self.adamw = torch.optim.AdamW(groups, recipe.lr, recipe.betas, recipe.eps, fused=True)
        for part in self.parts.values():
            zeros = {moment: torch.zeros_like(part, requires_grad=False) for moment in MOMENTS}
            self.adamw.state[part] = {"step": torch.zeros((), dtype=torch.float32, device=part.device), **zeros}

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        """Return the local parts of the gradients, and let the optimizer use them."""
        found = []
        for name, parameter in self.parameters.items():
            part, memory = self.parts[name], _local(parameter)
            if part.data_ptr() != memory.data_ptr():
                part.data = memory  # FSDP moves uneven shards into padded memory at the first forward call
            if parameter.grad is not None:
                part.grad = _local(parameter.grad)
                found.append(part.grad)
        return found

    def step(self, lr: float) -> None:
        """Update the weights with the gradients of the last call of :meth:`gradients`."""
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()

    def clear(self) -> None:
        """Delete the gradients."""
        for name, parameter in self.parameters.items():
            parameter.grad = self.parts[name].grad = None

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the moments by name, as DTensors that share the optimizer's memory."""
        found = {}
        for name, parameter in self.parameters.items():
            state = self.adamw.state[self.parts[name]]
            found[name] = {moment: _like(state[moment], parameter) for moment in MOMENTS}
        return found

    @property
    def updates(self) -> int:
        """Number of updates so far."""
        return int(next(iter(self.adamw.state.values()))["step"].item())

    def set_updates(self, count: int) -> None:
        """Set the number of updates, which the bias correction depends on."""
        for state in self.adamw.state.values():
            state["step"].fill_(count)


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _like(local: Tensor, parameter: Any) -> Tensor:
    """Return a local part as the DTensor that it belongs to, if the parameter is one."""
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
