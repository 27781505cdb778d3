"""Second product of a low-rank projection, with a sigmoid: the operator and its twin in torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from swila.ops.fused.choice import serves
from swila.ops.fused.layout import STRIDED

MOST_RANK = 128

_library = torch.library.Library("swila", "FRAGMENT")
_library.define("expand(Tensor low, Tensor up, bool sigmoid) -> Tensor", tags=STRIDED)
_expand_op = torch.ops.swila.expand.default


def expand(low: Tensor, up: Tensor, sigmoid: bool = False) -> Tensor:
    """Return ``low upᵀ``, or its sigmoid, in the dtype of ``low``.

    The kernel writes the sigmoid at once, where torch writes the product, reads it and writes again. It has no
    derivative: with gradients this is the twin.

    Args:
        low: Low-rank activations ``[..., R]``; rows may be far apart.
        up: Matrix ``[N, R]``.
        sigmoid: Whether to apply a sigmoid.
    """
    differentiated = torch.is_grad_enabled() and (low.requires_grad or up.requires_grad)
    if not differentiated and serves(low, up) and low.shape[-1] <= MOST_RANK:
        return _expand_op(low, up, sigmoid)
    return expand_in_torch(low, up, sigmoid)


def expand_in_torch(low: Tensor, up: Tensor, sigmoid: bool = False) -> Tensor:
    """Return :func:`expand` by operations of torch."""
    full = F.linear(low, up.to(low.dtype))
    return full.sigmoid() if sigmoid else full


@torch.library.impl(_library, "expand", "CompositeExplicitAutograd")
def _expand(low: Tensor, up: Tensor, sigmoid: bool) -> Tensor:
    if not sigmoid and low.is_cuda:  # the library's product is faster; the kernel saves a pass for the sigmoid
        return F.linear(low, up.to(low.dtype))
    from swila.ops.fused.expand_kernels import expand_kernel

    rows, up = low.reshape(-1, low.shape[-1]), up.to(low.dtype).contiguous()
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    (M, R), N = rows.shape, up.shape[0]
    full = torch.empty((*low.shape[:-1], N), dtype=low.dtype, device=low.device)
    BM = max(16, min(128, 1 << (M - 1).bit_length()))
    BN = max(16, min(128, 1 << (N - 1).bit_length()))
    BR = max(16, 1 << (R - 1).bit_length())
    grid = -(-M // BM), -(-N // BN)
    with torch.cuda.device_of(low):
        expand_kernel[grid](
            rows, rows.stride(0), up, full, M, N, R, SIGMOID=sigmoid, BM=BM, BN=BN, BR=BR, num_warps=8 if BM > 64 else 4
        )
    return full


@torch.library.register_fake("swila::expand", lib=_library)
def _expand_fake(low: Tensor, up: Tensor, sigmoid: bool) -> Tensor:
    return low.new_empty((*low.shape[:-1], up.shape[0]))
