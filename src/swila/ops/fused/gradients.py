"""Operators that compute gradients: called without torch's autograd wrapper, and differentiable no further."""

from __future__ import annotations

from typing import Any

import torch


def call_gradients(operator: Any, *args: Any) -> Any:
    """Call an operator of gradients from the backward of an ``autograd.Function``.

    Outside ``torch.compile`` and ``create_graph`` this passes by the wrapper of :func:`once_differentiable`, which
    takes host time.
    """
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return operator(*args)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*args)


def once_differentiable(library: torch.library.Library, name: str, what: str) -> None:
    """Let an operator of gradients raise an error where it is differentiated itself, instead of returning zeros.

    Args:
        library: Library that defines the operator.
        name: Qualified name of the operator.
        what: What is differentiable once, and what to use otherwise, for the error.
    """

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(what)

    torch.library.register_autograd(name, refuse, lib=library)
