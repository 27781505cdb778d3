"""Triton kernels of :mod:`swila.ops.fused.step_operands`."""

from __future__ import annotations

import triton
import triton.language as tl

from swila.ops.fused.sigmoid_kernels import sigmoid


@triton.jit
def _convolve(
    joint, stride, alive, B, weight, bias, state, out, head, block,
    C: tl.constexpr, H: tl.constexpr, D: tl.constexpr, TAPS: tl.constexpr, UNIT: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Convolve, SiLU and (UNIT) normalise one head of R rows; the state of alive rows takes in the new token."""
    b = block * R + tl.arange(0, R)
    d = head * D + tl.arange(0, D)
    there = (b < B)[:, None] & (d >= 0)[None, :]
    row = b.to(tl.int64)[:, None]
    x = tl.load(joint + row * stride + C + d[None, :], mask=there, other=0.0)
    y = x.to(tl.float32)
    if TAPS > 0:
        writes = there & (tl.load(alive + b, mask=b < B, other=0) != 0)[:, None]
        y *= tl.load(weight + d * TAPS + TAPS - 1).to(tl.float32)[None, :]
        last = state + row * ((TAPS - 1) * H * D) + d[None, :]
        for i in tl.static_range(TAPS - 1):
            before = tl.load(last + i * (H * D), mask=there, other=0.0)
            y += before.to(tl.float32) * tl.load(weight + d * TAPS + i).to(tl.float32)[None, :]
            if i > 0:
                tl.store(last + (i - 1) * (H * D), before, mask=writes)
        tl.store(last + (TAPS - 2) * (H * D), x.to(state.dtype.element_ty), mask=writes)
        if bias is not None:
            y += tl.load(bias + d).to(tl.float32)[None, :]
    y *= sigmoid(y)
    if UNIT:
        y *= tl.rsqrt(tl.sum(y * y, 1) + 1e-6)[:, None]
    tl.store(out + row * (H * D) + d[None, :], y.to(out.dtype.element_ty), mask=there)


@triton.jit
def _softplus(x):
    """Return log(1 + exp(x)), to full relative precision also where it is small."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    small = tl.where(u == 1.0, e, tl.log(u) * (e / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.maximum(x, 0.0) + small


@triton.jit
def _expand(
    joint, stride, B, weight, bias, rates, out, tile,
    C: tl.constexpr, N: tl.constexpr, RANK: tl.constexpr, REPEAT: tl.constexpr, GROUP: tl.constexpr, KIND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """BN columns of one operand, of all rows; KIND is 0 none, 1 sigmoid, 2 log-decay, 3 zeros."""
    m = tl.arange(0, BM)
    n = tile * BN + tl.arange(0, BN)
    row = m.to(tl.int64)[:, None]
    there = (m < B)[:, None] & (n < N)[None, :]
    if KIND == 3:
        y = tl.zeros([BM, BN], tl.float32)
    elif RANK > 0:
        PADDED: tl.constexpr = triton.next_power_of_2(RANK) if RANK > 16 else 16
        r = tl.arange(0, PADDED)
        z = tl.load(joint + row * stride + C + r[None, :], mask=(m < B)[:, None] & (r < RANK)[None, :], other=0.0)
        w = tl.load(weight + n[None, :] * RANK + r[:, None], mask=(r < RANK)[:, None] & (n < N)[None, :], other=0.0)
        y = tl.dot(z, w, input_precision="ieee")
    else:
        y = tl.load(joint + row * stride + C + (n // REPEAT)[None, :], mask=there, other=0.0).to(tl.float32)
    if bias is not None:
        y += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if KIND == 1:
        y = sigmoid(y)
    if KIND == 2:
        y = -tl.exp(tl.load(rates + n // GROUP, mask=n < N, other=0.0).to(tl.float32))[None, :] * _softplus(y)
    tl.store(out + row * N + n[None, :], y.to(out.dtype.element_ty), mask=there)


@triton.jit
def operands(
    joint,
    alive,
    qw, qb, qs, qo, kw, kb, ks, ko, vw, vb, vs, vo,
    W0, b0, A0, o0,
    W1, b1, A1, o1,
    W2, b2, A2, o2,
    W3, b3, A3, o3,
    W4, b4, A4, o4,
    W5, b5, A5, o5,
    W6, b6, A6, o6,
    stride,
    B,
    Cq: tl.constexpr, Hq: tl.constexpr, Dq: tl.constexpr,
    Ck: tl.constexpr, Hk: tl.constexpr, Dk: tl.constexpr,
    Cv: tl.constexpr, Hv: tl.constexpr, Dv: tl.constexpr,
    T0: tl.constexpr, C0: tl.constexpr, N0: tl.constexpr, R0: tl.constexpr,
    Q0: tl.constexpr, G0: tl.constexpr, X0: tl.constexpr,
    T1: tl.constexpr, C1: tl.constexpr, N1: tl.constexpr, R1: tl.constexpr,
    Q1: tl.constexpr, G1: tl.constexpr, X1: tl.constexpr,
    T2: tl.constexpr, C2: tl.constexpr, N2: tl.constexpr, R2: tl.constexpr,
    Q2: tl.constexpr, G2: tl.constexpr, X2: tl.constexpr,
    T3: tl.constexpr, C3: tl.constexpr, N3: tl.constexpr, R3: tl.constexpr,
    Q3: tl.constexpr, G3: tl.constexpr, X3: tl.constexpr,
    T4: tl.constexpr, C4: tl.constexpr, N4: tl.constexpr, R4: tl.constexpr,
    Q4: tl.constexpr, G4: tl.constexpr, X4: tl.constexpr,
    T5: tl.constexpr, C5: tl.constexpr, N5: tl.constexpr, R5: tl.constexpr,
    Q5: tl.constexpr, G5: tl.constexpr, X5: tl.constexpr,
    T6: tl.constexpr, C6: tl.constexpr, N6: tl.constexpr, R6: tl.constexpr,
    Q6: tl.constexpr, G6: tl.constexpr, X6: tl.constexpr,
    TAPS: tl.constexpr,
    RB: tl.constexpr,
    R: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """The number of the program says what it does: a head of q, k or v, or columns of one of the other operands."""
    pid = tl.program_id(0)
    begin = 0
    if (pid >= begin) & (pid < begin + Hq * RB):
        _convolve(
            joint, stride, alive, B, qw, qb, qs, qo, (pid - begin) // RB, (pid - begin) % RB,
            Cq, Hq, Dq, TAPS, True, R,
        )  # fmt: skip
    begin += Hq * RB
    if (pid >= begin) & (pid < begin + Hk * RB):
        _convolve(
            joint, stride, alive, B, kw, kb, ks, ko, (pid - begin) // RB, (pid - begin) % RB,
            Ck, Hk, Dk, TAPS, True, R,
        )  # fmt: skip
    begin += Hk * RB
    if (pid >= begin) & (pid < begin + Hv * RB):
        _convolve(
            joint, stride, alive, B, vw, vb, vs, vo, (pid - begin) // RB, (pid - begin) % RB,
            Cv, Hv, Dv, TAPS, False, R,
        )  # fmt: skip
    begin += Hv * RB
    if T0 > 0:
        if (pid >= begin) & (pid < begin + T0):
            _expand(
                joint, stride, B, W0, b0, A0, o0, pid - begin,
                C0, N0, R0, Q0, G0, X0, BM, BN,
            )  # fmt: skip
        begin += T0
    if T1 > 0:
        if (pid >= begin) & (pid < begin + T1):
            _expand(
                joint, stride, B, W1, b1, A1, o1, pid - begin,
                C1, N1, R1, Q1, G1, X1, BM, BN,
            )  # fmt: skip
        begin += T1
    if T2 > 0:
        if (pid >= begin) & (pid < begin + T2):
            _expand(
                joint, stride, B, W2, b2, A2, o2, pid - begin,
                C2, N2, R2, Q2, G2, X2, BM, BN,
            )  # fmt: skip
        begin += T2
    if T3 > 0:
        if (pid >= begin) & (pid < begin + T3):
            _expand(
                joint, stride, B, W3, b3, A3, o3, pid - begin,
                C3, N3, R3, Q3, G3, X3, BM, BN,
            )  # fmt: skip
        begin += T3
    if T4 > 0:
        if (pid >= begin) & (pid < begin + T4):
            _expand(
                joint, stride, B, W4, b4, A4, o4, pid - begin,
                C4, N4, R4, Q4, G4, X4, BM, BN,
            )  # fmt: skip
        begin += T4
    if T5 > 0:
        if (pid >= begin) & (pid < begin + T5):
            _expand(
                joint, stride, B, W5, b5, A5, o5, pid - begin,
                C5, N5, R5, Q5, G5, X5, BM, BN,
            )  # fmt: skip
        begin += T5
    if T6 > 0:
        if (pid >= begin) & (pid < begin + T6):
            _expand(
                joint, stride, B, W6, b6, A6, o6, pid - begin,
                C6, N6, R6, Q6, G6, X6, BM, BN,
            )  # fmt: skip
        begin += T6
