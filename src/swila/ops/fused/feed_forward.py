"""The feed-forward part of a block, with what the backward pass needs and nothing more.

::

    s = x + y,   n = rms_norm(s),   [g, u] = n [W_gate, W_up]ᵀ,   h = silu(g) ⊙ u,   out = s + h W_downᵀ

Autograd would keep s, n, g, u, silu(g) and h. Kept are s, g and u; n and h, which the gradients of the weights need,
are computed again, h in the kernel of the gradients of g and u. Gate and up are one product with the concatenated
weights, and so are their gradients: the input is read once, and the sum of its two gradients is inside the product. The
concatenation is made again for the backward pass: to keep it would be to keep the gathered weights of FSDP. Second
derivatives are not supported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from swila.ops.fused.choice import serves
from swila.ops.fused.concatenate import concatenate, concatenate_again
from swila.ops.fused.rms_norm import norm_serves, rms_norm_reference
from swila.ops.fused.swiglu import swiglu_reference


def swiglu_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return ``(silu(x Gᵀ) ⊙ x Uᵀ) Dᵀ`` and keep x and the two inner products alone.

    Args:
        x: Input ``[..., in]``.
        gate: Weight G ``[inner, in]``.
        up: Weight U ``[inner, in]``.
        down: Weight D ``[out, inner]``.
    """
    if not mlp_serves(x, gate, up, down):
        return F.linear(swiglu_reference(F.linear(x, gate), F.linear(x, up)), down)
    x, gate, up, down = _cast(x, gate, up, down)
    return _MLP.apply(x, gate, up, down)


def feed_forward(x: Tensor, y: Tensor, norm: Tensor, eps: float, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return ``s + MLP(rms_norm(s))`` with ``s = x + y``, and keep s and the two inner products alone.

    Args:
        x: Residual stream ``[..., D]``.
        y: What is added to it, ``[..., D]``.
        norm: Weight of the norm ``[D]``.
        eps: Epsilon of the norm.
        gate: See :func:`swiglu_mlp`.
        up: See :func:`swiglu_mlp`.
        down: See :func:`swiglu_mlp`; ``out`` is D.
    """
    if not feed_forward_serves(x, y, norm, gate, up, down):
        total = x + y
        return total + swiglu_mlp(rms_norm_reference(total, norm, eps), gate, up, down)
    _, gate, up, down = _cast(x, gate, up, down)
    return _FeedForward.apply(x, y, norm, eps, gate, up, down)


def mlp_serves(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> bool:
    """Return whether the fused function serves a call: with gradients, and operands of one dtype or under autocast.

    Without gradients nothing is kept, and the concatenation would double the time of a decode step.
    """
    if not torch.is_grad_enabled() or not serves(x, gate, up, down):
        return False
    return torch.is_autocast_enabled(x.device.type) or x.dtype == gate.dtype == up.dtype == down.dtype


def feed_forward_serves(x: Tensor, y: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> bool:
    """Return whether the fused function serves a call of :func:`feed_forward`."""
    total = torch.promote_types(x.dtype, y.dtype)
    autocast = torch.is_autocast_enabled(x.device.type)
    return (
        x.shape == y.shape
        and norm_serves(x, norm, y)
        and mlp_serves(x, gate, up, down)
        and (autocast or total == x.dtype)
    )


def _cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the operands of products in the dtype of autocast, if it is enabled."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t.to(dtype) for t in tensors)


def _inner(x: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[x Gᵀ, x Uᵀ]``, and ``silu(x Gᵀ) ⊙ x Uᵀ``."""
    both = F.linear(x, concatenate([gate, up], 0, gate.dtype))
    return both, torch.ops.swila.swiglu(*both.chunk(2, -1))


def _mlp_gradients(
    x: Callable[[], Tensor],
    both: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    grad: Tensor,
    wanted: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, gate, up and down as far as they are wanted; ``x()`` returns the input ``[N, in]``."""
    grad = grad.to(down.dtype).reshape(-1, down.shape[0])
    both = both.reshape(-1, both.shape[-1])
    dboth, h = torch.ops.swila.swiglu_backward_and_product(*both.chunk(2, -1), grad @ down)
    ddown = grad.mT @ h if wanted[3] else None
    del h
    dgate = dup = None
    if wanted[1] or wanted[2]:
        dgate, dup = (dboth.mT @ x()).chunk(2)
    dx = dboth @ concatenate_again([gate, up], 0, gate.dtype) if wanted[0] else None
    return dx, dgate, dup, ddown


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        both, h = _inner(x, gate, up)
        ctx.save_for_backward(x, both, gate, up, down)
        return F.linear(h, down)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, both, gate, up, down = ctx.saved_tensors
        dx, *others = _mlp_gradients(
            lambda: x.reshape(-1, x.shape[-1]), both, gate, up, down, grad, ctx.needs_input_grad
        )
        return None if dx is None else dx.reshape(x.shape), *others


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, norm: Tensor, eps: float, gate: Tensor, up: Tensor, down: Tensor
    ) -> Tensor:
        total, normed = torch.ops.swila.add_rms_norm(x, y, norm, eps, gate.dtype)
        both, h = _inner(normed, gate, up)
        ctx.save_for_backward(total, both, norm, gate, up, down)
        ctx.eps, ctx.dtypes = eps, (x.dtype, y.dtype)
        return total + F.linear(h, down)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        total, both, norm, gate, up, down = ctx.saved_tensors
        rows = total.reshape(-1, total.shape[-1])

        def normed() -> Tensor:
            return torch.ops.swila.rms_norm(rows, norm, None, "silu", ctx.eps, gate.dtype, True)

        wanted = (True, *ctx.needs_input_grad[4:])
        dnormed, *others = _mlp_gradients(normed, both, gate, up, down, grad, wanted)
        flat = grad.reshape(-1, grad.shape[-1])
        dx, dnorm, _ = torch.ops.swila.rms_norm_backward(rows, norm, None, "silu", ctx.eps, dnormed, flat)
        dx = dx.view(total.shape)
        return dx.to(ctx.dtypes[0]), dx.to(ctx.dtypes[1]), dnorm, None, *others
