"""RMS normalisation over the last dimension: alone, after the addition of a residual, or with a gate.

With ``r = 1 / sqrt(mean(x²) + eps)``, the activation ``a`` and ``y = x r w a(g)``::

    dn = dy w a(g),   dx = r dn - x r³ mean(dn x),   dw = Σ_rows dy a(g) x r,   dg = dy x r w a'(g)

All is computed in float32. Kernels keep the input alone, and compute ``r`` again in the backward pass. The gradient of
the weight is summed over a fixed partition of the rows, so that it is the same in every run and on every GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from swila.ops.fused.choice import serves
from swila.ops.fused.layout import STRIDED
from swila.ops.fused.partial_sums import sum_of_parts

LARGEST = 8192  # last dimension that a program of the kernels holds
PROGRAMS = 528  # parts of the rows in the backward pass; four for each multiprocessor of an H100 or H200
ACTIVATIONS = ("silu", "sigmoid")

_library = torch.library.Library("swila", "FRAGMENT")
# ``again`` marks the recomputation in a backward pass: without it, compilers would merge it with the forward pass and
# keep its result.
_library.define(
    "rms_norm(Tensor x, Tensor weight, Tensor? gate, str activation, float eps, ScalarType dtype, bool again) "
    "-> Tensor",
    tags=STRIDED,
)
_library.define(
    "add_rms_norm(Tensor x, Tensor y, Tensor weight, float eps, ScalarType dtype) -> (Tensor, Tensor)", tags=STRIDED
)
_library.define(
    "rms_norm_backward(Tensor x, Tensor weight, Tensor? gate, str activation, float eps, Tensor grad, Tensor? grad_x) "
    "-> (Tensor, Tensor, Tensor)",
    tags=STRIDED,
)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    gate: Tensor | None = None,
    activation: str = "silu",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return ``x / sqrt(mean(x²) + eps) * weight * a(gate)``, the mean over the last dimension.

    Args:
        x: Input ``[..., D]``.
        weight: ``[D]``, of any floating dtype.
        eps: Added to the mean square.
        gate: ``[..., D]``, of any floating dtype. Default: no gate.
        activation: Function ``a`` of the gate: ``"silu"`` or ``"sigmoid"``.
        dtype: Dtype of the result. Default: that of ``x``.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be 'silu' or 'sigmoid', got {activation!r}")
    if gate is not None and gate.shape != x.shape:
        raise ValueError(f"gate must have the shape of x, {list(x.shape)}, got {list(gate.shape)}")
    dtype = dtype or x.dtype
    if not norm_serves(x, weight, gate):
        return rms_norm_reference(x, weight, eps, gate, activation, dtype)
    return _RMSNorm.apply(x, weight, gate, activation, eps, dtype)


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return ``x + y`` and its :func:`rms_norm`, both in the common dtype of ``x`` and ``y``.

    Args:
        x: First summand ``[..., D]``.
        y: Second summand, of the same shape.
        weight: ``[D]``, of any floating dtype.
        eps: Added to the mean square.
    """
    if x.shape != y.shape:
        raise ValueError(f"y must have the shape of x, {list(x.shape)}, got {list(y.shape)}")
    if not norm_serves(x, weight, y):
        total = x + y
        return total, rms_norm_reference(total, weight, eps)
    return _AddRMSNorm.apply(x, y, weight, eps)


def rms_norm_reference(
    x: Tensor,
    weight: Tensor,
    eps: float,
    gate: Tensor | None = None,
    activation: str = "silu",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the same as :func:`rms_norm`, in plain torch, in float32 (float64 for float64)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    full = _cast(x, wide)
    normed = full * torch.rsqrt(full.square().mean(-1, keepdim=True) + eps) * _cast(weight, wide)
    if gate is not None:
        gate = _cast(gate, wide)
        normed = normed * (F.silu(gate) if activation == "silu" else gate.sigmoid())
    return _cast(normed, dtype or x.dtype)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in a dtype, without a cast that does nothing.

    In torch 2.11, gradients of a compiled ``autograd.Function`` are lost if its result is such a cast.
    """
    return x if x.dtype == dtype else x.to(dtype)


def norm_serves(x: Tensor, weight: Tensor, other: Tensor | None = None) -> bool:
    """Return whether the kernels serve a norm; traced without gradients they do not, as the compiler fuses as well."""
    if not serves(x, weight, other) or weight.shape != x.shape[-1:] or x.shape[-1] > LARGEST:
        return False
    return torch.is_grad_enabled() or not torch.compiler.is_compiling()


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gate: Tensor | None, activation: str, eps: float, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(x, weight, gate)
        ctx.activation, ctx.eps = activation, eps
        if torch.compiler.is_compiling():  # the compiler then computes it again for the backward of what reads it
            return rms_norm_reference(x, weight, eps, gate, activation, dtype)
        return torch.ops.swila.rms_norm(x, weight, gate, activation, eps, dtype, False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate = ctx.saved_tensors
        dx, dweight, dgate = torch.ops.swila.rms_norm_backward(x, weight, gate, ctx.activation, ctx.eps, grad, None)
        return dx, dweight, None if gate is None else dgate, None, None, None


class _AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            total = x + y
            normed = rms_norm_reference(total, weight, eps)
        else:
            dtype = torch.promote_types(x.dtype, y.dtype)
            total, normed = torch.ops.swila.add_rms_norm(x, y, weight, eps, dtype)
        ctx.save_for_backward(total, weight)
        ctx.eps, ctx.dtypes = eps, (x.dtype, y.dtype)
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        total, weight = ctx.saved_tensors
        dx, dweight, _ = torch.ops.swila.rms_norm_backward(total, weight, None, "silu", ctx.eps, grad, grad_total)
        return dx.to(ctx.dtypes[0]), dx.to(ctx.dtypes[1]), dweight, None


def _heads_of(gate: Tensor | None, x: Tensor) -> tuple[Tensor, int, int, int]:
    """Return a gate as ``[tokens, heads, D]`` with its heads and two strides; a dummy without one.

    A gate ``[B, T, H, D]`` that is a part of a wider product has rows at two distances, and need not be copied.
    """
    if gate is None:
        return x, 1, 0, 0
    heads = gate.shape[-2] if gate.ndim > 2 else 1
    gate = gate.reshape(-1, heads, gate.shape[-1])
    gate = gate if gate.stride(2) == 1 else gate.contiguous()
    return gate, heads, gate.stride(0), gate.stride(1)


def rows_of(x: Tensor) -> Tensor:
    """Return ``[..., D]`` as ``[rows, D]`` whose last dimension is contiguous: a view where there is one."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


def _rms_norm(
    x: Tensor, weight: Tensor, gate: Tensor | None, activation: str, eps: float, dtype: torch.dtype, again: bool
) -> Tensor:
    out = x.new_empty(x.shape, dtype=dtype)
    _launch_forward(x, None, weight, gate, activation, eps, None, out)
    return out


def _add_rms_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    total = x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype))
    out = x.new_empty(x.shape, dtype=dtype)
    _launch_forward(x, y, weight, None, "", eps, total, out)
    return total, out


def _launch_forward(
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    gate: Tensor | None,
    activation: str,
    eps: float,
    total: Tensor | None,
    out: Tensor,
) -> None:
    if not x.numel():
        return
    from swila.ops.fused.rms_norm_kernels import rms_norm_forward_kernel

    x = rows_of(x)
    y = x if y is None else rows_of(y)
    gates, *where = _heads_of(gate, x)
    (rows, dim), (count, block, warps) = x.shape, _tile(x.shape[1], 4096)
    with torch.cuda.device_of(x):
        rms_norm_forward_kernel[(-(-rows // count),)](
            x, y, weight.contiguous(), gates, out if total is None else total, out,
            rows, dim, eps, x.stride(0), y.stride(0), *where,
            ADD=total is not None, GATE="" if gate is None else activation,
            ROWS=count, BLOCK=block, num_warps=warps,
        )  # fmt: skip


def _rms_norm_backward(
    x: Tensor,
    weight: Tensor,
    gate: Tensor | None,
    activation: str,
    eps: float,
    grad: Tensor,
    grad_x: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = x.new_empty(x.shape)
    dgate = x.new_empty(0) if gate is None else gate.new_empty(gate.shape)
    if not x.numel():
        return dx, torch.zeros_like(weight), dgate
    from swila.ops.fused.rms_norm_kernels import rms_norm_backward_kernel

    x, grad = rows_of(x), rows_of(grad)
    grad_x = None if grad_x is None else rows_of(grad_x)
    gates, *where = _heads_of(gate, x)
    (rows, dim), (count, block, warps) = x.shape, _tile(x.shape[1], 2048)
    programs = min(PROGRAMS, -(-rows // count))
    parts = x.new_empty(programs, dim, dtype=torch.float32)
    with torch.cuda.device_of(x):
        rms_norm_backward_kernel[(programs,)](
            x, weight.contiguous(), gates, grad, grad if grad_x is None else grad_x, dx,
            dx if gate is None else dgate, parts,
            rows, dim, eps, x.stride(0), *where, grad.stride(0), 0 if grad_x is None else grad_x.stride(0),
            ADD=grad_x is not None, GATE="" if gate is None else activation,
            ROWS=count, BLOCK=block, num_warps=warps,
        )  # fmt: skip
    return dx, sum_of_parts(parts, weight.dtype), dgate


def _tile(dim: int, elements: int) -> tuple[int, int, int]:
    """Return rows and columns of the tile of a program, and its warps: rows whole, some ``elements`` in all."""
    block = max(16, 1 << (dim - 1).bit_length())
    return max(1, elements // block), block, max(4, block // 512)


_library.impl("rms_norm", _rms_norm, "CompositeExplicitAutograd")
_library.impl("add_rms_norm", _add_rms_norm, "CompositeExplicitAutograd")
_library.impl("rms_norm_backward", _rms_norm_backward, "CompositeExplicitAutograd")


@torch.library.register_fake("swila::rms_norm", lib=_library)
def _(
    x: Tensor, weight: Tensor, gate: Tensor | None, activation: str, eps: float, dtype: torch.dtype, again: bool
) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.register_fake("swila::add_rms_norm", lib=_library)
def _(x: Tensor, y: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype)), x.new_empty(x.shape, dtype=dtype)


@torch.library.register_fake("swila::rms_norm_backward", lib=_library)
def _(
    x: Tensor, weight: Tensor, gate: Tensor | None, activation: str, eps: float, grad: Tensor, grad_x: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dgate = x.new_empty(0) if gate is None else gate.new_empty(gate.shape)
    return x.new_empty(x.shape), weight.new_empty(weight.shape), dgate
