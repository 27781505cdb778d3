"""Triton kernels of :mod:`swila.ops.fused.short_conv`; a program has the channels of a head, and tiles of tokens.

It reads the filters once, for all its tiles: a thread needs a load for each tap of each of its channels, several times
as many as for a tile of the input.
"""

from __future__ import annotations

import triton
import triton.language as tl

from swila.ops.fused.sigmoid_kernels import sigmoid

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
def _filters(weight, c, valid, filters, W: tl.constexpr):
    """Return the taps of the filters of the channels, each in float32."""
    taps = ()
    for i in tl.static_range(W):
        taps = taps + (tl.load(weight + (c % filters) * W + i, mask=valid, other=0.0).to(tl.float32)[None, :],)
    return taps


@triton.jit
def _inputs(x, row_stride, state, t, row, start, there, c, channels, W: tl.constexpr, STATE: tl.constexpr):
    """Return what each tap reads: the inputs ``W - 1, ..., 0`` tokens before each token."""
    inputs = ()
    for i in tl.static_range(W):
        at = t - (W - 1 - i)
        inside = there & (at >= start)[:, None]
        value = tl.load(x + at[:, None].to(tl.int64) * row_stride + c[None, :], mask=inside, other=0.0)
        if STATE:
            place = W - 1 + at - start
            known = there & ((place >= 0) & (place < W - 1))[:, None]
            places = (row.to(tl.int64) * (W - 1) + place)[:, None]
            kept = tl.load(state + places * channels + c[None, :], mask=known, other=0.0)
            value = tl.where(inside, value.to(tl.float32), kept.to(tl.float32))
        inputs = inputs + (value,)
    return inputs


@triton.jit
def _convolve(inputs, taps, offset, W: tl.constexpr):
    """Return the convolution of a tile, in float32."""
    total = inputs[0].to(tl.float32) * taps[0]
    for i in tl.static_range(1, W):
        total += inputs[i].to(tl.float32) * taps[i]
    return total + offset


@triton.jit
def _offset(bias, c, valid, filters, BIAS: tl.constexpr):
    """Return the bias of the channels in float32, or 0."""
    if BIAS:
        offset = tl.load(bias + c % filters, mask=valid, other=0.0).to(tl.float32)[None, :]
    else:
        offset = 0.0
    return offset


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    x, row_stride, weight, bias, state, y, bounds, tokens, length, last_row, search_steps, channels, filters,
    EPS: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr,
    STATE: tl.constexpr, PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write every ``num_programs``-th tile of the result."""
    lane = tl.arange(0, BC)
    c = tl.program_id(1) * WIDTH + lane
    valid = (lane < WIDTH) & (c < channels)
    taps = _filters(weight, c, valid, filters, W)
    offset = _offset(bias, c, valid, filters, BIAS)
    for tile in range(tl.program_id(0), tl.cdiv(tokens, BT), tl.num_programs(0)):
        t = tile * BT + tl.arange(0, BT)
        there = (t < tokens)[:, None] & valid[None, :]
        row, start, _end = _locate(bounds, t, length, last_row, search_steps, PACKED)
        s = _convolve(_inputs(x, row_stride, state, t, row, start, there, c, channels, W, STATE), taps, offset, W)
        if SILU:
            s = s * sigmoid(s)
        if NORM:
            s = s * tl.rsqrt(tl.sum(s * s, axis=1) + EPS)[:, None]
        tl.store(y + t[:, None].to(tl.int64) * channels + c[None, :], s.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=SIZES)
def activation_backward_kernel(
    x, row_stride, weight, bias, state, dy, dy_stride, da, parts, bounds, tokens, length, last_row, search_steps,
    channels, filters, EPS: tl.constexpr, W: tl.constexpr, SILU: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, STATE: tl.constexpr, PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradient before the activation, and this program's part of the gradients of filters and bias.

    Products are summed over the tiles element by element, and over the tokens of a tile once, at the end: a sum across
    threads costs as much as the rest of a tile. A row of ``parts`` has the filters of one stream, then its biases.
    """
    lane = tl.arange(0, BC)
    c = tl.program_id(1) * WIDTH + lane
    valid = (lane < WIDTH) & (c < channels)
    taps = _filters(weight, c, valid, filters, W)
    offset = _offset(bias, c, valid, filters, BIAS)
    sums = ()
    for _i in tl.static_range(W + BIAS):
        sums = sums + (tl.zeros((BT, BC), dtype=tl.float32),)
    for tile in range(tl.program_id(0), tl.cdiv(tokens, BT), tl.num_programs(0)):
        t = tile * BT + tl.arange(0, BT)
        there = (t < tokens)[:, None] & valid[None, :]
        row, start, _end = _locate(bounds, t, length, last_row, search_steps, PACKED)
        d = tl.load(dy + t[:, None].to(tl.int64) * dy_stride + c[None, :], mask=there, other=0.0).to(tl.float32)
        inputs = _inputs(x, row_stride, state, t, row, start, there, c, channels, W, STATE)
        if SILU or NORM:
            a = _convolve(inputs, taps, offset, W)
            gate = sigmoid(a)
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
        more = ()
        for i in tl.static_range(W):
            more = more + (sums[i] + d * inputs[i].to(tl.float32),)
        if BIAS:
            more = more + (sums[W] + d,)
        sums = more
    streams = channels // filters
    part = parts + (tl.program_id(0).to(tl.int64) * streams + c // filters) * filters * (W + BIAS)
    for i in tl.static_range(W):
        tl.store(part + (c % filters) * W + i, tl.sum(sums[i], axis=0), mask=valid)
    if BIAS:
        tl.store(part + filters * W + c % filters, tl.sum(sums[W], axis=0), mask=valid)


@triton.jit(do_not_specialize=SIZES)
def convolution_backward_kernel(
    da, weight, dx, bounds, tokens, length, last_row, search_steps, channels, filters, W: tl.constexpr,
    PACKED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the input: token t is read by the tokens t, ..., t + W - 1 of its sequence."""
    lane = tl.arange(0, BC)
    c = tl.program_id(1) * WIDTH + lane
    valid = (lane < WIDTH) & (c < channels)
    taps = _filters(weight, c, valid, filters, W)
    for tile in range(tl.program_id(0), tl.cdiv(tokens, BT), tl.num_programs(0)):
        t = tile * BT + tl.arange(0, BT)
        there = (t < tokens)[:, None] & valid[None, :]
        _row, _start, end = _locate(bounds, t, length, last_row, search_steps, PACKED)
        total = tl.zeros((BT, BC), dtype=tl.float32)
        for ahead in tl.static_range(W):
            at = t + ahead
            reader = there & ((at < end) & (at < tokens))[:, None]
            d = tl.load(da + at[:, None].to(tl.int64) * channels + c[None, :], mask=reader, other=0.0)
            total += d.to(tl.float32) * taps[W - 1 - ahead]
        tl.store(dx + t[:, None].to(tl.int64) * channels + c[None, :], total.to(dx.dtype.element_ty), mask=there)
