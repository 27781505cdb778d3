"""Triton kernels of :mod:`swila.ops.fused.next_token`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pick(
    logits, embedding, stop, at, done, broken, tokens, alive, x, stride, B, pad,
    N: tl.constexpr, D: tl.constexpr, STOPS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The most likely token of one row, its embedding, and what the loop keeps of it."""
    b = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    index = n
    row = logits + b.to(tl.int64) * stride
    for first in range(0, N, BLOCK):
        value = tl.load(row + first + n, mask=first + n < N, other=float("-inf")).to(tl.float32)
        value = tl.where(value != value, float("inf"), value)
        better = value > best
        best = tl.where(better, value, best)
        index = tl.where(better, first + n, index)
    most = tl.max(best, 0)
    token = tl.min(tl.where(best == most, index, N), 0).to(tl.int64)
    lives = tl.load(done + b).to(tl.int32) == 0
    step = tl.load(at)
    finite = (most > float("-inf")) & (most < float("inf"))
    before = tl.load(broken + b)
    tl.store(broken + b, tl.where(lives & (before == 0) & (finite == 0), step + 1, before))
    shown = tl.where(lives, token, pad)
    tl.store(tokens + step * B + b, shown)
    tl.store(alive + b, lives)
    ends = lives == 0
    for i in tl.static_range(STOPS):
        ends = ends | (shown == tl.load(stop + i))
    tl.store(done + b, ends)
    source = embedding + tl.where(lives, token, 0) * D
    for first in tl.static_range(0, D, WIDTH):
        d = first + tl.arange(0, WIDTH)
        value = tl.load(source + d, mask=d < D, other=0.0)
        value = tl.where(lives, value, 0.0)  # finished rows must not introduce NaN
        tl.store(x + b.to(tl.int64) * D + d, value.to(x.dtype.element_ty), mask=d < D)


@triton.jit
def keep(x, weight, hidden, alive, at, eps, D: tl.constexpr, WIDTH: tl.constexpr):
    """The normalised hidden state of one row, if it is alive; the first program counts the step."""
    b = tl.program_id(0)
    d = tl.arange(0, WIDTH)
    there = d < D
    value = tl.load(x + b.to(tl.int64) * D + d, mask=there, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / D + eps)
    value *= tl.load(weight + d, mask=there, other=0.0).to(tl.float32)
    width = tl.where(tl.load(alive + b) != 0, D, 0)
    tl.store(hidden + b.to(tl.int64) * D + d, value.to(hidden.dtype.element_ty), mask=d < width)
    if b == 0:
        tl.store(at, tl.load(at) + 1)
