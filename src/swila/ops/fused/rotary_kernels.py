"""Triton kernel of :mod:`swila.ops.fused.rotary`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotate_kernel(
    x, table, out, T, rows, stride_b, stride_t, stride_h,
    BACK: tl.constexpr, H: tl.constexpr, HALF: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr,
):  # fmt: skip
    """Rotate all heads of a token; the table has ``rows`` tokens, those of one sequence or of all."""
    token = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, DB)
    h = tl.arange(0, HB)[:, None]
    angle = token % rows * HALF + i
    cos = tl.load(table + angle, mask=i < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(table + rows * HALF + angle, mask=i < HALF, other=0.0).to(tl.float32)[None, :]
    if BACK:
        sin = -sin
    there = (h < H) & (i < HALF)[None, :]
    source = x + token // T * stride_b + token % T * stride_t + h * stride_h + i[None, :]
    a = tl.load(source, mask=there, other=0.0).to(tl.float32)
    b = tl.load(source + HALF, mask=there, other=0.0).to(tl.float32)
    to = out + (token * H + h) * (2 * HALF) + i[None, :]
    tl.store(to, (a * cos - b * sin).to(out.dtype.element_ty), mask=there)
    tl.store(to + HALF, (b * cos + a * sin).to(out.dtype.element_ty), mask=there)
