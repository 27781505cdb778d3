"""Triton kernels of :mod:`swila.ops.fused.rms_norm`."""

from __future__ import annotations

import triton
import triton.language as tl

from swila.ops.fused.sigmoid_kernels import sigmoid


@triton.jit
def rms_norm_forward_kernel(
    x_ptr,
    y_ptr,
    weight_ptr,
    gate_ptr,
    total_ptr,
    out_ptr,
    rows,
    dim,
    eps,
    x_stride,
    y_stride,
    heads,
    token_stride,
    head_stride,
    ADD: tl.constexpr,
    GATE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the norm of ``ROWS`` rows; with ``ADD`` of the sum ``x + y``, rounded, which is written as well."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < dim)
    token, head, row = (row // heads).to(tl.int64), row % heads, row.to(tl.int64)
    x = tl.load(x_ptr + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(y_ptr + row * y_stride + col, mask=inside, other=0.0).to(tl.float32)
        total = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * dim + col, total, mask=inside)
        x = total.to(tl.float32)
    weight = tl.load(weight_ptr + col, mask=col < dim, other=0.0).to(tl.float32)
    out = x * tl.rsqrt(tl.sum(x * x, axis=1) / dim + eps)[:, None] * weight
    if GATE != "":
        where = token * token_stride + head * head_stride
        gate = tl.load(gate_ptr + where + col, mask=inside, other=0.0).to(tl.float32)
        out *= sigmoid(gate)
        if GATE == "silu":
            out *= gate
    tl.store(out_ptr + row * dim + col, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_backward_kernel(
    x_ptr,
    weight_ptr,
    gate_ptr,
    grad_ptr,
    grad_x_ptr,
    dx_ptr,
    dgate_ptr,
    dweight_ptr,
    rows,
    dim,
    eps,
    x_stride,
    heads,
    token_stride,
    head_stride,
    grad_stride,
    grad_x_stride,
    ADD: tl.constexpr,
    GATE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the gradients of every ``num_programs``-th tile of rows, and their sum for the weight.

    With ``ADD``, ``grad_x`` is added to the gradient of ``x``.
    """
    col = tl.arange(0, BLOCK)[None, :]
    weight = tl.load(weight_ptr + col, mask=col < dim, other=0.0).to(tl.float32)
    dweight = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = (tile * ROWS + tl.arange(0, ROWS))[:, None]
        inside = (row < rows) & (col < dim)
        token, head, row = (row // heads).to(tl.int64), row % heads, row.to(tl.int64)
        x = tl.load(x_ptr + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + row * grad_stride + col, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / dim + eps)[:, None]
        if GATE != "":
            where = token * token_stride + head * head_stride
            gate = tl.load(gate_ptr + where + col, mask=inside, other=0.0).to(tl.float32)
            s = sigmoid(gate)
            slope = s * (1 - s)
            if GATE == "silu":
                slope = s + gate * slope
                s *= gate
            dgate = grad * x * scale * weight * slope
            tl.store(dgate_ptr + row * dim + col, dgate.to(dgate_ptr.dtype.element_ty), mask=inside)
            grad *= s
        dweight += grad * x * scale
        grad *= weight
        mean = (tl.sum(grad * x, axis=1) / dim)[:, None]
        dx = scale * grad - x * (scale * scale * scale * mean)
        if ADD:
            dx += tl.load(grad_x_ptr + row * grad_x_stride + col, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * dim + col, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    tl.store(dweight_ptr + tl.program_id(0) * dim + col, tl.sum(dweight, axis=0)[None, :], mask=col < dim)
