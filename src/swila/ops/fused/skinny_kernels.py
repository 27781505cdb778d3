"""Triton kernels of :mod:`swila.ops.fused.skinny`."""

from __future__ import annotations

import triton
import triton.language as tl

from swila.ops.fused.sigmoid_kernels import sigmoid


@triton.jit
def _matrix(
    pid,
    W0,
    W1,
    W2,
    W3,
    W4,
    W5,
    W6,
    W7,
    W8,
    W9,
    N0: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    N3: tl.constexpr,
    N4: tl.constexpr,
    N5: tl.constexpr,
    N6: tl.constexpr,
    N7: tl.constexpr,
    N8: tl.constexpr,
    N9: tl.constexpr,
    BN: tl.constexpr,
):
    """Return the matrix of a program: its address, the program's first row, its number of rows, its first column."""
    w = W0
    first = pid * BN
    rows = pid * 0 + N0
    column = pid * 0
    start = (N0 + BN - 1) // BN
    total = N0
    if N1 > 0:
        here = pid >= start
        w = tl.where(here, W1, w)
        first = tl.where(here, (pid - start) * BN, first)
        rows = tl.where(here, N1, rows)
        column = tl.where(here, total, column)
        start += (N1 + BN - 1) // BN
        total += N1
    if N2 > 0:
        here = pid >= start
        w = tl.where(here, W2, w)
        first = tl.where(here, (pid - start) * BN, first)
        rows = tl.where(here, N2, rows)
        column = tl.where(here, total, column)
        start += (N2 + BN - 1) // BN
        total += N2
    if N3 > 0:
        here = pid >= start
        w = tl.where(here, W3, w)
        first = tl.where(here, (pid - start) * BN, first)
        rows = tl.where(here, N3, rows)
        column = tl.where(here, total, column)
        start += (N3 + BN - 1) // BN
        total += N3
    if N4 > 0:
        here = pid >= start
        w = tl.where(here, W4, w)
        first = tl.where(here, (pid - start) * BN, first)
        rows = tl.where(here, N4, rows)
        column = tl.where(here, total, column)
        start += (N4 + BN - 1) // BN
        total += N4
    if N5 > 0:
        here = pid >= start
        w = tl.where(here, W5, w)
        first = tl.where(here, (pid - start) * BN, first)
        rows = tl.where(here, N5, rows)
        column = tl.where(here, total, column)
        start += (N5 + BN - 1) // BN
        total += N5
    if N6 > 0:
        here = pid >= start
        w = tl.where(here, W6, w)
        first = tl.where(here, (pid - start) * BN, first)
        rows = tl.where(here, N6, rows)
        column = tl.where(here, total, column)
        start += (N6 + BN - 1) // BN
        total += N6
    if N7 > 0:
        here = pid >= start
        w = tl.where(here, W7, w)
        first = tl.where(here, (pid - start) * BN, first)
        rows = tl.where(here, N7, rows)
        column = tl.where(here, total, column)
        start += (N7 + BN - 1) // BN
        total += N7
    if N8 > 0:
        here = pid >= start
        w = tl.where(here, W8, w)
        first = tl.where(here, (pid - start) * BN, first)
        rows = tl.where(here, N8, rows)
        column = tl.where(here, total, column)
        start += (N8 + BN - 1) // BN
        total += N8
    if N9 > 0:
        here = pid >= start
        w = tl.where(here, W9, w)
        first = tl.where(here, (pid - start) * BN, first)
        rows = tl.where(here, N9, rows)
        column = tl.where(here, total, column)
        start += (N9 + BN - 1) // BN
        total += N9
    return tl.multiple_of(w, 16), first, rows, column


@triton.jit
def _gate(gate, KIND: tl.constexpr):
    """Return silu (1) or sigmoid (2) of a gate."""
    factor = sigmoid(gate)
    if KIND == 1:
        factor *= gate
    return factor


@triton.jit
def gemv(
    x,
    weight,
    gate,
    residual,
    out,
    W0,
    W1,
    W2,
    W3,
    W4,
    W5,
    W6,
    W7,
    W8,
    W9,
    eps,
    N0: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    N3: tl.constexpr,
    N4: tl.constexpr,
    N5: tl.constexpr,
    N6: tl.constexpr,
    N7: tl.constexpr,
    N8: tl.constexpr,
    N9: tl.constexpr,
    K: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    NORM: tl.constexpr,
    HEAD: tl.constexpr,
    GATE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PAIR: tl.constexpr,
):
    """One row: BN outputs of one matrix (PAIR: of two), without matrix units; NORM is 0 none, 1 row, 2 heads."""
    pid = tl.program_id(0)
    if PAIR:
        w, first, rows, column = W0, pid * BN, pid * 0 + N0, pid * 0
    else:
        w, first, rows, column = _matrix(
            pid, W0, W1, W2, W3, W4, W5, W6, W7, W8, W9, N0, N1, N2, N3, N4, N5, N6, N7, N8, N9, BN
        )
    r = tl.arange(0, BN)
    k = tl.arange(0, BK)
    inside = first + r < rows
    w += first.to(tl.int64) * K
    tile = r[:, None] * K + k[None, :]
    acc = tl.zeros([BN, BK], tl.float32)
    if PAIR:
        w_up = W1 + first.to(tl.int64) * K
        up = tl.zeros([BN, BK], tl.float32)
    squares = tl.zeros([BK], tl.float32)
    for k0 in tl.static_range(0, K, BK):
        there = inside[:, None] & (k0 + k < K)[None, :]
        # weights first: they do not depend on the input, and are what the kernel waits for
        a = tl.load(w + k0 + tile, mask=there, other=0.0, eviction_policy="evict_first")
        if PAIR:
            b = tl.load(w_up + k0 + tile, mask=there, other=0.0, eviction_policy="evict_first")
        if NORM == 2:
            h = tl.arange(0, BK // HEAD)
            d = tl.arange(0, HEAD)
            at = k0 + h[:, None] * HEAD + d[None, :]
            part = tl.load(x + at, mask=at < K, other=0.0).to(tl.float32)
            scale = tl.rsqrt(tl.sum(part * part, 1) / HEAD + eps)
            part = part * scale[:, None] * tl.load(weight + d).to(tl.float32)[None, :]
            if GATE != 0:
                part *= _gate(tl.load(gate + at, mask=at < K, other=0.0).to(tl.float32), GATE)
            v = tl.reshape(part, [BK])
        else:
            v = tl.load(x + k0 + k, mask=k0 + k < K, other=0.0).to(tl.float32)
            if NORM == 1:
                squares += v * v
                v *= tl.load(weight + k0 + k, mask=k0 + k < K, other=0.0).to(tl.float32)
            if GATE != 0:
                v *= _gate(tl.load(gate + k0 + k, mask=k0 + k < K, other=0.0).to(tl.float32), GATE)
        acc += a.to(tl.float32) * v[None, :]
        if PAIR:
            up += b.to(tl.float32) * v[None, :]
    y = tl.sum(acc, 1)
    scale = 1.0
    if NORM == 1:
        scale = tl.rsqrt(tl.sum(squares, 0) / K + eps)
        y *= scale
    if PAIR:
        y = y * sigmoid(y) * (tl.sum(up, 1) * scale)
    to = column + first + r
    if RESIDUAL:
        y += tl.load(residual + to, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + to, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _write(
    acc, up, m, to, inside, residual, out, B, stride_residual, stride_out, RESIDUAL: tl.constexpr, PAIR: tl.constexpr,
):  # fmt: skip
    """Write a tile of the outputs."""
    if PAIR:
        acc = acc * sigmoid(acc) * up
    there = (m < B)[:, None] & inside[None, :]
    rows = m.to(tl.int64)[:, None]
    if RESIDUAL:
        acc += tl.load(residual + rows * stride_residual + to[None, :], mask=there, other=0.0).to(tl.float32)
    tl.store(out + rows * stride_out + to[None, :], acc.to(out.dtype.element_ty), mask=there)


@triton.jit
def product(
    x,
    gate,
    residual,
    out,
    partial,
    counters,
    W0,
    W1,
    W2,
    W3,
    W4,
    W5,
    W6,
    W7,
    W8,
    W9,
    B,
    stride_x,
    stride_gate,
    stride_residual,
    stride_out,
    N0: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    N3: tl.constexpr,
    N4: tl.constexpr,
    N5: tl.constexpr,
    N6: tl.constexpr,
    N7: tl.constexpr,
    N8: tl.constexpr,
    N9: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PER: tl.constexpr,
    SPLITS: tl.constexpr,
    GATE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PAIR: tl.constexpr,
):
    """All rows: BN outputs of one matrix (PAIR: of two), over PER of the K inputs.

    With SPLITS > 1 the last program to arrive adds the parts of all, in a fixed order.
    """
    pid = tl.program_id(0)
    split = tl.program_id(1)
    if PAIR:
        w, first, rows, column = W0, pid * BN, pid * 0 + N0, pid * 0
    else:
        w, first, rows, column = _matrix(
            pid, W0, W1, W2, W3, W4, W5, W6, W7, W8, W9, N0, N1, N2, N3, N4, N5, N6, N7, N8, N9, BN
        )
    m = tl.arange(0, BM)
    r = tl.arange(0, BN)
    k = tl.arange(0, BK)
    there = m < B
    inside = first + r < rows
    line = m.to(tl.int64)[:, None]
    w += first.to(tl.int64) * K
    if PAIR:
        w_up = W1 + first.to(tl.int64) * K
        up = tl.zeros([BM, BN], tl.float32)
    acc = tl.zeros([BM, BN], tl.float32)
    for i in range(0, PER // BK):
        kk = split * PER + i * BK + k
        low = kk < K
        mask = there[:, None] & low[None, :]
        a = tl.load(x + line * stride_x + kk[None, :], mask=mask, other=0.0)
        b = tl.load(
            w + r[None, :] * K + kk[:, None], mask=low[:, None] & inside[None, :], other=0.0,
            eviction_policy="evict_first",
        )  # fmt: skip
        if PAIR:
            b_up = tl.load(
                w_up + r[None, :] * K + kk[:, None], mask=low[:, None] & inside[None, :], other=0.0,
                eviction_policy="evict_first",
            )  # fmt: skip
        if GATE != 0:
            g = tl.load(gate + line * stride_gate + kk[None, :], mask=mask, other=0.0).to(tl.float32)
            a = (a.to(tl.float32) * _gate(g, GATE)).to(b.dtype)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        if PAIR:
            up = tl.dot(a, b_up, up, input_precision="ieee")
    if not PAIR:
        up = acc
    to = column + first + r
    if SPLITS == 1:
        _write(acc, up, m, to, inside, residual, out, B, stride_residual, stride_out, RESIDUAL, PAIR)
    else:
        SIZE: tl.constexpr = BM * BN * (2 if PAIR else 1)
        at = m[:, None] * BN + r[None, :]
        mine = partial + (pid * SPLITS + split).to(tl.int64) * SIZE
        tl.store(mine + at, acc)
        if PAIR:
            tl.store(mine + BM * BN + at, up)
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + pid, 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            tl.debug_barrier()
            total = tl.zeros([BM, BN], tl.float32)
            total_up = tl.zeros([BM, BN], tl.float32)
            for s in tl.static_range(SPLITS):
                part = partial + (pid * SPLITS + s).to(tl.int64) * SIZE
                total += tl.load(part + at, cache_modifier=".cg")
                if PAIR:
                    total_up += tl.load(part + BM * BN + at, cache_modifier=".cg")
            tl.store(counters + pid, 0)  # for the next call
            _write(total, total_up, m, to, inside, residual, out, B, stride_residual, stride_out, RESIDUAL, PAIR)
