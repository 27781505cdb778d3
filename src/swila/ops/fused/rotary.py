"""Rotary positions: dimensions ``(i, i + D/2)`` of a head are rotated by the angle ``position theta^(-2i/D)``.

Angles are computed in float64, because positions may be large, once for all heads: the table of their cosines and sines
is an operator that a compiler does not fuse, as it would otherwise compute them again for every element. The gradient
is rotated back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from swila.ops.fused.choice import serves
from swila.ops.fused.layout import STRIDED

_library = torch.library.Library("swila", "FRAGMENT")
_library.define("rotary_table(Tensor position, int half, float theta, ScalarType dtype) -> Tensor", tags=STRIDED)
_library.define("rotate(Tensor x, Tensor table, bool back) -> Tensor", tags=STRIDED)


def rotary_table(position: Tensor, dim: int, theta: float, dtype: torch.dtype) -> Tensor:
    """Return the cosines and sines ``[2, ..., T, D/2]`` of the angles ``position theta^(-2i/D)``.

    Args:
        position: Positions ``[..., T]``, of as many sequences as are rotated or of one for all.
        dim: Width of a head, D; even.
        theta: Base of the frequencies.
        dtype: Dtype of what is rotated; the table is in float32 for half precision.
    """
    return torch.ops.swila.rotary_table(position, dim // 2, theta, torch.promote_types(dtype, torch.float32))


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate dimensions ``(i, i + D/2)`` of queries or keys ``[..., T, H, D]`` by the angles of a table."""
    if x.ndim != 4 or table.ndim != 4 or torch.compiler.is_compiling() or not serves(x, table):
        return rotate_reference(x, table)  # a compiler fuses it with what comes before
    return _Rotate.apply(x, table)


def rotate_reference(x: Tensor, table: Tensor, back: bool = False) -> Tensor:
    """Return :func:`rotate` by operations of torch; ``back``: by the negative angles."""
    cos, sin = table.unsqueeze(-2)
    sin = -sin if back else sin
    full = x.to(table.dtype)
    a, b = full.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(table)
        return torch.ops.swila.rotate(x, table, False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.ops.swila.rotate(grad, *ctx.saved_tensors, True), None


@torch.library.impl(_library, "rotary_table", "CompositeExplicitAutograd")
def _rotary_table(position: Tensor, half: int, theta: float, dtype: torch.dtype) -> Tensor:
    frequency = theta ** (-torch.arange(half, device=position.device, dtype=torch.float64) / half)
    angle = position.contiguous().unsqueeze(-1) * frequency
    return torch.stack([angle.cos(), angle.sin()]).to(dtype)


@torch.library.impl(_library, "rotate", "CompositeExplicitAutograd")
def _rotate(x: Tensor, table: Tensor, back: bool) -> Tensor:
    out = x.new_empty(x.shape)
    if not x.numel():
        return out
    from swila.ops.fused.rotary_kernels import rotate_kernel

    x = x if x.stride(3) == 1 else x.contiguous()
    B, T, H, D = x.shape
    with torch.cuda.device_of(x):
        rotate_kernel[(B * T,)](
            x, table.contiguous(), out, T, table.shape[1] * T, *x.stride()[:3],
            BACK=back, H=H, HALF=D // 2, HB=1 << (H - 1).bit_length(), DB=1 << (D // 2 - 1).bit_length(), num_warps=4,
        )  # fmt: skip
    return out


@torch.library.register_fake("swila::rotary_table", lib=_library)
def _(position: Tensor, half: int, theta: float, dtype: torch.dtype) -> Tensor:
    return position.new_empty((2, *position.shape, half), dtype=dtype)


@torch.library.register_fake("swila::rotate", lib=_library)
def _(x: Tensor, table: Tensor, back: bool) -> Tensor:
    return x.new_empty(x.shape)
