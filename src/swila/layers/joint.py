"""Projections of one input: by one matrix product where possible, else module by module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swila.ops.fused.choice import serves
from swila.ops.fused.concatenate import concatenate, concatenate_again
from swila.ops.fused.expand import expand
from swila.ops.fused.modules import is_plain, is_plain_linear, is_tensor

FEWEST_TOKENS = 256  # without gradients, shorter inputs cost less than the concatenation of the weights
_ALIGNED = 16  # channels; rows of the product and its parts start at multiples, for vector loads


class Projections:
    """The projections ``W_i x`` of one input, each computed where it is first read, or all in one product at once.

    With gradients, one product saves most in the backward: one product for ``dx``, instead of one per projection and
    their sum. A projection takes part if it is a plain ``Linear``, or a low-rank one (a ``Sequential`` of two) whose
    first matrix is; any other module (with hooks, an adapter, a quantised or sharded weight) is called as it is.

    Args:
        x: Input ``[B, T, hidden_size]``.
        modules: The projections by name.
    """

    def __init__(self, x: Tensor, modules: Mapping[str, nn.Module]) -> None:
        self.x, self.modules = x, modules
        self.first: dict[str, Tensor] = {}  # outputs of the matrices that read x
        if serves(x) and (torch.is_grad_enabled() or x.shape[1] >= FEWEST_TOKENS):
            names, readers = [], []
            for name, module in modules.items():
                reader = _first(module)
                if reader is not None:
                    names.append(name)
                    readers.append(reader)
            self.first = dict(zip(names, joint_linear(x, readers), strict=True))

    def __call__(self, name: str) -> Tensor:
        """Return the projection of that name."""
        module = self.modules[name]
        if name not in self.first:
            return module(self.x)
        return module[1](self.first[name]) if isinstance(module, nn.Sequential) else self.first[name]

    def low(self, name: str) -> Tensor:
        """Return the activations ``[B, T, R]`` of a low-rank projection."""
        if name in self.first:
            return self.first[name]
        return self.modules[name][0](self.x)  # type: ignore[index]

    def up(self, name: str) -> Tensor | None:
        """Return the second matrix ``[out, R]`` of a projection that is two plain matrices; None for any other."""
        module = self.modules[name]
        if not (is_plain(module, nn.Sequential) and len(module) == 2):
            return None
        first, second = module[0], module[1]
        if not (is_plain_linear(first) and is_plain_linear(second)):
            return None
        return second.weight

    def full(self, name: str, sigmoid: bool = False) -> Tensor:
        """Return the projection, or its sigmoid; without gradients, that of a low-rank one by the fused kernel."""
        up = self.up(name) if serves(self.x) and not torch.is_grad_enabled() and self.x.shape[1] > 1 else None
        if up is not None:
            return expand(self.low(name), up, sigmoid)
        return self(name).sigmoid() if sigmoid else self(name)


def joint_linear(x: Tensor, modules: Sequence[nn.Linear]) -> list[Tensor]:
    """Return ``module(x)`` of each module: views of one product with the concatenated weights, if they allow it.

    Args:
        x: Input ``[..., in_features]``.
        modules: Plain ``Linear`` modules, with or without bias.
    """
    if not _joinable(x, modules):
        return [module(x) for module in modules]
    order = [i for i, module in enumerate(modules) if module.out_features % _ALIGNED == 0]
    order += [i for i, module in enumerate(modules) if module.out_features % _ALIGNED != 0]
    weights = [modules[i].weight for i in order]
    sizes = [modules[i].out_features for i in order]
    spare = -sum(sizes) % _ALIGNED
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    product = _JointLinear.apply(x, spare, len(weights), *weights, *(modules[i].bias for i in order))
    parts = product.split([*sizes, spare] if spare else sizes, -1)
    found: list[Tensor] = [product] * len(modules)
    for i, part in zip(order, parts, strict=False):
        found[i] = part
    return found


def _first(module: nn.Module) -> nn.Linear | None:
    """Return the matrix of a projection that reads the input, if it is a plain one."""
    if is_plain(module, nn.Sequential) and len(module) == 2:
        module = module[0]
    return module if is_plain(module, nn.Linear) and is_tensor(module.weight) else None


def _joinable(x: Tensor, modules: Sequence[nn.Linear]) -> bool:
    if len(modules) < 2:
        return False
    dtype = modules[0].weight.dtype
    if any(m.weight.dtype != dtype or m.weight.device != x.device for m in modules):
        return False
    return torch.is_autocast_enabled(x.device.type) or x.dtype == dtype


class _JointLinear(torch.autograd.Function):
    """Keeps the input and the weights as they are; the backward concatenates them again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spare: int, count: int, *parameters: Any) -> Tensor:
        weights, biases = parameters[:count], parameters[count:]
        ctx.save_for_backward(x, *weights)
        ctx.spare, ctx.biases = spare, [None if b is None else b.dtype for b in biases]
        bias = None
        if any(b is not None for b in biases):
            parts = [w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
            bias = torch.cat([*parts, x.new_zeros(spare, dtype=parts[0].dtype)]).to(x.dtype)
        return F.linear(x, concatenate(weights, spare, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        wanted, count = ctx.needs_input_grad, len(weights)
        sizes = [*(len(w) for w in weights), ctx.spare]
        rows = grad.reshape(-1, grad.shape[-1])
        dx = dweights = dbiases = None
        if wanted[0]:
            dx = (rows @ concatenate_again(weights, ctx.spare, x.dtype)).view(x.shape)
        if any(wanted[3 : 3 + count]):
            dweights = (rows.T @ x.reshape(-1, x.shape[-1])).split(sizes)
        if any(wanted[3 + count :]):
            dbiases = rows.sum(0).split(sizes)
        found: list[Tensor | None] = [dx, None, None]
        for i, weight in enumerate(weights):
            found.append(dweights[i].to(weight.dtype) if dweights is not None and wanted[3 + i] else None)
        for i, dtype in enumerate(ctx.biases):
            found.append(dbiases[i].to(dtype) if dbiases is not None and dtype is not None else None)
        return tuple(found)
