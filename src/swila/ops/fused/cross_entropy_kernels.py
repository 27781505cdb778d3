"""Triton kernel of :mod:`swila.ops.fused.cross_entropy`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cross_entropy_kernel(
    z_ptr,
    target_ptr,
    loss_ptr,
    out_ptr,
    vocabulary,
    z_stride,
    out_stride,
    IGNORE: tl.constexpr,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the loss of a row and, with ``GRADIENT``, the gradient of its logits, which may take their place."""
    row = tl.program_id(0).to(tl.int64)
    z_ptr += row * z_stride
    out_ptr += row * out_stride
    target = tl.load(target_ptr + row).to(tl.int64)
    counted = target != IGNORE
    valid = (target >= 0) & (target < vocabulary)
    # read before the row is overwritten: the reductions below are barriers
    chosen = tl.load(z_ptr + target, mask=valid, other=float("nan")).to(tl.float32)
    highest = -3.0e38  # finite: the difference of two infinities is NaN
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        col = start + tl.arange(0, BLOCK)
        z = tl.load(z_ptr + col, mask=col < vocabulary, other=float("-inf")).to(tl.float32)
        new = tl.maximum(highest, tl.max(z, axis=0))
        total = total * tl.exp(highest - new) + tl.sum(tl.exp(z - new), axis=0)
        highest = new
    normaliser = highest + tl.log(total)
    tl.store(loss_ptr + row, tl.where(counted, normaliser - chosen, 0.0))
    if GRADIENT:
        for start in range(0, vocabulary, BLOCK):
            col = start + tl.arange(0, BLOCK)
            z = tl.load(z_ptr + col, mask=col < vocabulary, other=float("-inf")).to(tl.float32)
            dz = tl.exp(z - normaliser) - (col == target).to(tl.float32)
            dz = tl.where(counted, dz, 0.0)
            tl.store(out_ptr + col, dz.to(out_ptr.dtype.element_ty), mask=col < vocabulary)
