"""AdamW on this rank's part of the float32 master weights.

There are three cases. With several ranks, the parameters of the model are DTensors with float32 shards, which FSDP
gathers in bfloat16 to compute. With one rank and bfloat16, the model has bfloat16 parameters, and the masters are
copies of them in float32. With one rank and float32, the parameters are their own masters.

The optimizer always works on plain tensors: an operation on many DTensors costs the host tens of milliseconds, which a
GPU has to wait for. Its state becomes DTensors only in checkpoints, so that any number of ranks can read them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from swila.pretraining.recipe import OptimizerRecipe, Precision
from swila.training.optimizer import parameter_groups

MOMENTS = ("exp_avg", "exp_avg_sq")


class MasterAdamW:
    """Fused AdamW on float32 master weights.

    Args:
        model: The model, with float32 parameters, sharded or not. With precision bfloat16 the parameters of a model
            that is not sharded become bfloat16.
        recipe: Learning rate, weight decay, betas and epsilon.
        precision: Precision in which the model computes.
    """

    def __init__(self, model: nn.Module, recipe: OptimizerRecipe, precision: Precision) -> None:
        self.parameters = dict(model.named_parameters())
        groups = parameter_groups(model, recipe.weight_decay)
        sharded = any(isinstance(p, DTensor) for p in self.parameters.values())
        self.copies = precision == "bfloat16" and not sharded
        with torch.no_grad():
            self.masters = {name: nn.Parameter(_local(p)) for name, p in self.parameters.items()}
            if self.copies:
                for parameter in self.parameters.values():
                    parameter.data = parameter.data.bfloat16()
        names = {id(p): name for name, p in self.parameters.items()}
        self.adamw = torch.optim.AdamW(
            [{**group, "params": [self.masters[names[id(p)]] for p in group["params"]]} for group in groups],
            recipe.lr,
            recipe.betas,
            recipe.eps,
            fused=True,
        )
        for master in self.masters.values():
            zeros = {moment: torch.zeros_like(master, requires_grad=False) for moment in MOMENTS}
            self.adamw.state[master] = {"step": torch.zeros((), dtype=torch.float32, device=master.device), **zeros}

    @torch.no_grad()
    def accumulate(self) -> None:
        """Add the gradients of a micro-batch to those of the masters, in float32; call this after each backward."""
        if not self.copies:
            return  # autograd and FSDP accumulate in float32 already
        first: list[tuple[Any, Any]] = []  # sums and gradients
        later: list[tuple[Any, Any]] = []
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                master = self.masters[name]
                pairs = first if master.grad is None else later
                if master.grad is None:
                    master.grad = torch.empty_like(master)
                pairs.append((master.grad, parameter.grad))
                parameter.grad = None
        if first:
            torch._foreach_copy_([total for total, _ in first], [gradient for _, gradient in first])
        if later:
            torch._foreach_add_([total for total, _ in later], [gradient for _, gradient in later])

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        """Return the local gradients of the masters, after the last micro-batch."""
        if not self.copies:
            for name, parameter in self.parameters.items():
                master, memory = self.masters[name], _local(parameter)
                if master.data_ptr() != memory.data_ptr():
                    master.data = memory  # FSDP moves uneven shards into padded memory at the first forward call
                master.grad = None if parameter.grad is None else _local(parameter.grad)
        return [master.grad for master in self.masters.values() if master.grad is not None]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the weights with the gradients of the masters."""
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        self._publish()

    def clear(self) -> None:
        """Delete the gradients."""
        for name, parameter in self.parameters.items():
            parameter.grad = self.masters[name].grad = None

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return master weights and moments by name, for a checkpoint; they share the optimizer's memory."""
        found: dict[str, dict[str, Tensor]] = {"weights": {}, **{moment: {} for moment in MOMENTS}}
        for name, parameter in self.parameters.items():
            master = self.masters[name]
            found["weights"][name] = master.detach() if self.copies else parameter.detach()
            for moment in MOMENTS:
                found[moment][name] = _like(self.adamw.state[master][moment], parameter)
        return found

    @torch.no_grad()
    def loaded(self, updates: int) -> None:
        """Take over a state that was read into the tensors of :meth:`state`.

        Args:
            updates: Number of updates so far, which the bias correction depends on.
        """
        for state in self.adamw.state.values():
            state["step"].fill_(updates)
        self._publish()

    def _publish(self) -> None:
        """Copy the masters into the parameters of the model."""
        if self.copies:
            torch._foreach_copy_([p.data for p in self.parameters.values()], [m.data for m in self.masters.values()])


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
