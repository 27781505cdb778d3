"""Triton kernels of :mod:`swila.ops.fused.swiglu`."""

from __future__ import annotations

import triton
import triton.language as tl

from swila.ops.fused.sigmoid_kernels import sigmoid


@triton.jit
def swiglu_forward_kernel(
    gate_ptr, up_ptr, out_ptr, rows, dim, gate_stride, up_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Write a tile of ``silu(gate) * up``."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (col < dim)
    row = row.to(tl.int64)
    gate = tl.load(gate_ptr + row * gate_stride + col, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + col, mask=inside, other=0.0).to(tl.float32)
    out = gate * sigmoid(gate) * up
    tl.store(out_ptr + row * dim + col, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_backward_kernel(
    gate_ptr,
    up_ptr,
    grad_ptr,
    both_ptr,
    product_ptr,
    rows,
    dim,
    gate_stride,
    up_stride,
    grad_stride,
    PRODUCT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write a tile of the gradients of gate and up, the halves of ``both``.

    With ``PRODUCT``, also ``silu(gate) * up``.
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (col < dim)
    row = row.to(tl.int64)
    gate = tl.load(gate_ptr + row * gate_stride + col, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + col, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + row * grad_stride + col, mask=inside, other=0.0).to(tl.float32)
    s = sigmoid(gate)
    silu = gate * s
    dgate = grad * up * (s + silu * (1 - s))
    tl.store(both_ptr + row * (2 * dim) + col, dgate.to(both_ptr.dtype.element_ty), mask=inside)
    tl.store(both_ptr + row * (2 * dim) + dim + col, (grad * silu).to(both_ptr.dtype.element_ty), mask=inside)
    if PRODUCT:
        tl.store(product_ptr + row * dim + col, (silu * up).to(product_ptr.dtype.element_ty), mask=inside)
