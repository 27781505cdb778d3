"""Triton kernels of :mod:`swila.ops.fused.short_conv`; a program has a block of tokens and the channels of a head."""

from __future__ import annotations

import triton
import triton.language as tl

# sizes that change from call to call must not compile the kernels again
SIZES = ["tokens", "length", "last_row", "search_steps"]


@triton.jit
def _locate(bounds, t, length, last_row, search_steps, PACKED: tl.constexpr):
    """Return the sequence of each token: its index, its first token, and the token after its last."""
    if PACKED:
        row = t * 0
        high = row + last_row
        for _ in range(search_steps):
            middle = (row + high + 1) // 2
            begun = tl.load(bounds + middle).to(tl.int32) <= t
            row = tl.where(begun, middle, row)
            high = tl.where(begun, high, middle - 1)
        start = tl.load(bounds + row).to(tl.int32)
        end = tl.load(bounds + row + 1).to(tl.int32)
    else:
        row = t // length
        start = row * length
        end = start + length
    return row, start, end


@triton.jit
def _tap(x, row_stride, state, t, row, start, there, c, channels, back, W: tl.constexpr, STATE: tl.constexpr):
    """Return the input ``back`` tokens before each token, in float32."""
    at = t - back
    inside = (at >= start)[:, None]
    value = tl.load(x + at[:, None].to(tl.int64) * row_stride + c[None, :], mask=there & inside, other=0.0)
    value = value.to(tl.float32)
    if STATE:
        place = W - 1 + at - start
        known = there & ((place >= 0) & (place < W - 1))[:, None]
        places = (row.to(tl.int64) * (W - 1) + place)[:, None]
        kept = tl.load(state + places * channels + c[None, :], mask=known, other=0.0)
        value += kept.to(tl.float32)
    return value


@triton.jit
def _filter(weight, c, valid, filters, i, W: tl.constexpr):
    """Return tap i of the filters of the channels, in float32."""
    return tl.load(weight + (c % filters) * W + i, mask=valid, other=0.0).to(tl.float32)


@triton.jit
def _convolve(
    x, row_stride, weight, bias, state, t, row, start, there, c, valid, channels, filters,
    W: tl.constexpr, BIAS: tl.constexpr, STATE: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Return the convolution of a block, in float32."""
    total = tl.zeros((BT, BC), dtype=tl.float32)
    for i in tl.static_range(W):
        tap = _tap(x, row_stride, state, t, row, start, there, c, channels, W - 1 - i, W, STATE)
        total += tap * _filter(weight, c, valid, filters, i, W)[None, :]
    if BIAS:
        total += tl.load(bias + c % filters, mask=valid, other=0.0).to(tl.float32)[None, :]
    return total


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    x, row_stride, weight, bias, state, y, bounds, tokens, length, last_row, search_steps, channels, filters,
    EPS: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr,
    STATE: tl.constexpr, PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write a block of the result."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    lane = tl.arange(0, BC)
    c = tl.program_id(1) * WIDTH + lane
    valid = (lane < WIDTH) & (c < channels)
    there = (t < tokens)[:, None] & valid[None, :]
    row, start, _ = _locate(bounds, t, length, last_row, search_steps, PACKED)
    s = _convolve(
        x, row_stride, weight, bias, state, t, row, start, there, c, valid, channels, filters, W, BIAS, STATE, BT, BC
    )
    if SILU:
        s = s * tl.sigmoid(s)
    if NORM:
        s = s * tl.rsqrt(tl.sum(s * s, axis=1) + EPS)[:, None]
    tl.store(y + t[:, None].to(tl.int64) * channels + c[None, :], s.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=SIZES)
def activation_backward_kernel(
    x, row_stride, weight, bias, state, dy, dy_stride, da, parts, bounds, tokens, length, last_row, search_steps,
    channels, filters, EPS: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, STATE: tl.constexpr, PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
    WIDTH: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write the gradient before the activation, and this program's part of the gradients of filters and bias.

    A program has several blocks of tokens. It sums products over the blocks element by element, and over the tokens of
    a block once, at the end: a sum across threads costs as much as the rest of a block.
    """
    lane = tl.arange(0, BC)
    c = tl.program_id(1) * WIDTH + lane
    valid = (lane < WIDTH) & (c < channels)
    sums = tl.zeros((BT, BC), dtype=tl.float32)
    first = tl.zeros((BT, BC), dtype=tl.float32)
    second = tl.zeros((BT, BC), dtype=tl.float32)
    third = tl.zeros((BT, BC), dtype=tl.float32)
    fourth = tl.zeros((BT, BC), dtype=tl.float32)
    part = parts + tl.program_id(0).to(tl.int64) * (W + 1) * channels + c
    for block in range(BLOCKS):
        t = (tl.program_id(0) * BLOCKS + block) * BT + tl.arange(0, BT)
        there = (t < tokens)[:, None] & valid[None, :]
        row, start, _ = _locate(bounds, t, length, last_row, search_steps, PACKED)
        d = tl.load(dy + t[:, None].to(tl.int64) * dy_stride + c[None, :], mask=there, other=0.0).to(tl.float32)
        if SILU or NORM:
            a = _convolve(
                x, row_stride, weight, bias, state, t, row, start, there, c, valid, channels, filters,
                W, BIAS, STATE, BT, BC,
            )  # fmt: skip
            gate = tl.sigmoid(a)
            if NORM:
                s = a
                if SILU:
                    s = a * gate
                inverse = tl.rsqrt(tl.sum(s * s, axis=1) + EPS)[:, None]
                unit = s * inverse
                d = inverse * (d - unit * tl.sum(d * unit, axis=1)[:, None])
            if SILU:
                d = d * gate * (1 + a * (1 - gate))
        tl.store(da + t[:, None].to(tl.int64) * channels + c[None, :], d.to(da.dtype.element_ty), mask=there)
        sums += d
        for i in tl.static_range(W):
            tap = _tap(x, row_stride, state, t, row, start, there, c, channels, W - 1 - i, W, STATE)
            if i == 0:
                first += d * tap
            elif i == 1:
                second += d * tap
            elif i == 2:
                third += d * tap
            elif i == 3:
                fourth += d * tap
            else:  # BLOCKS is 1 with more taps
                tl.store(part + i * channels, tl.sum(d * tap, axis=0), mask=valid)
    tl.store(part, tl.sum(first, axis=0), mask=valid)
    if W > 1:
        tl.store(part + channels, tl.sum(second, axis=0), mask=valid)
    if W > 2:
        tl.store(part + 2 * channels, tl.sum(third, axis=0), mask=valid)
    if W > 3:
        tl.store(part + 3 * channels, tl.sum(fourth, axis=0), mask=valid)
    tl.store(part + W * channels, tl.sum(sums, axis=0), mask=valid)


@triton.jit(do_not_specialize=SIZES)
def convolution_backward_kernel(
    da, weight, dx, bounds, tokens, length, last_row, search_steps, channels, filters, W: tl.constexpr,
    PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the input: token t is read by the tokens t, ..., t + W - 1 of its sequence."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    lane = tl.arange(0, BC)
    c = tl.program_id(1) * WIDTH + lane
    valid = (lane < WIDTH) & (c < channels)
    there = (t < tokens)[:, None] & valid[None, :]
    _, _, end = _locate(bounds, t, length, last_row, search_steps, PACKED)
    total = tl.zeros((BT, BC), dtype=tl.float32)
    for ahead in tl.static_range(W):
        at = t + ahead
        reader = there & ((at < end) & (at < tokens))[:, None]
        d = tl.load(da + at[:, None].to(tl.int64) * channels + c[None, :], mask=reader, other=0.0).to(tl.float32)
        total += d * _filter(weight, c, valid, filters, W - 1 - ahead, W)[None, :]
    tl.store(dx + t[:, None].to(tl.int64) * channels + c[None, :], total.to(dx.dtype.element_ty), mask=there)
