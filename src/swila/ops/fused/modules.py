"""Which modules a fused piece may replace: those that do no more than their class says."""

from __future__ import annotations

from typing import Any, TypeGuard, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def is_plain(module: nn.Module, kind: type[M]) -> TypeGuard[M]:
    """Return whether a module is exactly of a class, with no hook on a call or its gradient.

    Modules that are wrapped (adapters, quantisation, parametrisations, offloaded weights) are of another class, have
    hooks, or have a ``forward`` of their own. They must be called as modules.
    """
    if "forward" in module.__dict__:
        return False
    return type(module) is kind and not (
        module._forward_pre_hooks or module._forward_hooks or module._backward_pre_hooks or module._backward_hooks
    )


def is_plain_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a module is ``x Wᵀ`` and nothing else, with a weight that is a tensor of torch's own."""
    return is_plain(module, nn.Linear) and module.bias is None and is_tensor(module.weight)


def is_tensor(weight: Any) -> bool:
    """Return whether a weight is a tensor of torch's own, not of a subclass (quantised) with products of its own.

    A fake tensor, with which plans are traced, stands for a tensor of torch's own.
    """
    kind = type(weight)
    return kind is nn.Parameter or kind is Tensor or kind.__module__ == "torch._subclasses.fake_tensor"
