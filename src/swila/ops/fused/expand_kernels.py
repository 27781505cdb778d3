"""Triton kernel of :mod:`swila.ops.fused.expand`."""

from __future__ import annotations

import triton
import triton.language as tl

from swila.ops.fused.sigmoid_kernels import sigmoid


@triton.jit(do_not_specialize=["M"])
def expand_kernel(
    low, row_stride, up, full, M, N, R, SIGMOID: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr
):
    """Write a block of ``full [M, N] = low [M, R] upᵀ``; the whole rank is one step of the product."""
    m = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    r = tl.arange(0, BR)
    a = tl.load(low + m[:, None] * row_stride + r[None, :], mask=(m < M)[:, None] & (r < R)[None, :], other=0.0)
    b = tl.load(up + n[None, :] * R + r[:, None], mask=(n < N)[None, :] & (r < R)[:, None], other=0.0)
    total = tl.dot(a, b, input_precision="ieee")
    if SIGMOID:
        total = sigmoid(total)
    there = (m < M)[:, None] & (n < N)[None, :]
    tl.store(full + m[:, None] * N + n[None, :], total.to(full.dtype.element_ty), mask=there)
