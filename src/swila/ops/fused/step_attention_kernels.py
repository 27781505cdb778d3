"""Triton kernels of :mod:`swila.ops.fused.step_attention`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place(
    joint, q_weight, k_weight, lengths, q, keys, values, stride, stride_b, stride_s, eps, LOG_THETA: tl.constexpr,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, ROTATES: tl.constexpr, NORM: tl.constexpr, HB: tl.constexpr,
):  # fmt: skip
    """Normalise and rotate the queries and keys of one row, and store key and value in the free slot of the caches."""
    b = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    HALF: tl.constexpr = D // 2
    QB: tl.constexpr = (H + HB - 1) // HB
    KB: tl.constexpr = (HK + HB - 1) // HB
    slot = tl.load(lengths + b)
    h = tl.arange(0, HB)
    i = tl.arange(0, HALF)
    is_query = block < QB
    is_value = block >= QB + KB
    heads = tl.where(is_query, H, HK)
    column = tl.where(is_query, 0, tl.where(is_value, (H + HK) * D, H * D))
    cached = b * stride_b + slot * stride_s
    out = tl.where(is_query, q + b * (H * D), tl.where(is_value, values + cached, keys + cached))
    h += (block - tl.where(is_query, 0, tl.where(is_value, QB + KB, QB))) * HB
    there = (h < heads)[:, None] & (i >= 0)[None, :]
    at = h[:, None] * D + i[None, :]
    source = joint + b * stride + column
    x = tl.load(source + at, mask=there, other=0.0)
    y = tl.load(source + at + HALF, mask=there, other=0.0)
    if is_value:
        tl.store(out + at, x, mask=there)
        tl.store(out + at + HALF, y, mask=there)
    else:
        u = x.to(tl.float32)
        v = y.to(tl.float32)
        if NORM:
            weight = tl.where(is_query, q_weight, k_weight)
            scale = tl.rsqrt((tl.sum(u * u, 1) + tl.sum(v * v, 1)) / D + eps)[:, None]
            u *= scale * tl.load(weight + i).to(tl.float32)[None, :]
            v *= scale * tl.load(weight + HALF + i).to(tl.float32)[None, :]
        if ROTATES:
            # in float64, and within one turn: a position may be large
            angle = slot.to(tl.float64) * tl.exp(i.to(tl.float64) * (-LOG_THETA / HALF))
            angle -= 6.283185307179586 * tl.floor(angle / 6.283185307179586)
            cos = tl.cos(angle.to(tl.float32))[None, :]
            sin = tl.sin(angle.to(tl.float32))[None, :]
            rotated = u * cos - v * sin
            v = v * cos + u * sin
            u = rotated
        tl.store(out + at, u.to(joint.dtype.element_ty), mask=there)
        tl.store(out + at + HALF, v.to(joint.dtype.element_ty), mask=there)


@triton.jit
def attend(
    q, keys, values, lengths, partial, stride_b, stride_s, scale, PER, SPLITS,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attention of one head of one row over PER slots: the largest logit, the sum of weights, the weighted values.

    Each of BS lines has a softmax of its own over every BS-th slot; they are joined at the end.
    """
    unit = tl.program_id(0)
    split = tl.program_id(1)
    b = (unit // H).to(tl.int64)
    head = (unit % H) // (H // HK)
    start = split * PER
    end = tl.minimum(start + PER, tl.load(lengths + b).to(tl.int32) + 1)
    d = tl.arange(0, D)
    line = tl.arange(0, BS)
    query = tl.load(q + unit * D + d).to(tl.float32) * scale
    k_row = keys + b * stride_b + head * D + d[None, :]
    v_row = values + b * stride_b + head * D + d[None, :]
    most = tl.full([BS], -1e30, tl.float32)
    total = tl.zeros([BS], tl.float32)
    acc = tl.zeros([BS, D], tl.float32)
    for first in tl.range(start, end, BS, num_stages=STAGES):
        s = first + line
        there = s < end
        at = s.to(tl.int64)[:, None] * stride_s
        mask = there[:, None] & (d >= 0)[None, :]
        k = tl.load(k_row + at, mask=mask, other=0.0)
        v = tl.load(v_row + at, mask=mask, other=0.0)
        logit = tl.where(there, tl.sum(k.to(tl.float32) * query[None, :], 1), -1e30)
        larger = tl.maximum(most, logit)
        weight = tl.where(there, tl.exp2(logit - larger), 0.0)
        kept = tl.exp2(most - larger)
        total = total * kept + weight
        acc = acc * kept[:, None] + weight[:, None] * v.to(tl.float32)
        most = larger
    peak = tl.max(most, 0)
    share = tl.exp2(most - peak)
    out = partial + (unit * SPLITS + split) * (D + 2)
    tl.store(out + d, tl.sum(acc * share[:, None], 0))
    tl.store(out + D, peak)
    tl.store(out + D + 1, tl.sum(total * share, 0))


@triton.jit
def combine(partial, out, lengths, alive, SPLITS, H: tl.constexpr, D: tl.constexpr, PADDED: tl.constexpr):
    """Join the splits of a head; the first head of an alive row counts the token."""
    unit = tl.program_id(0)
    b = unit // H
    s = tl.arange(0, PADDED)
    d = tl.arange(0, D)
    there = s < SPLITS
    base = partial + (unit * SPLITS + s) * (D + 2)
    peak = tl.load(base + D, mask=there, other=-1e30)
    share = tl.where(there, tl.exp2(peak - tl.max(peak, 0)), 0.0)
    total = tl.sum(tl.load(base + D + 1, mask=there, other=0.0) * share, 0)
    mask = there[:, None] & (d >= 0)[None, :]
    acc = tl.sum(tl.load(base[:, None] + d[None, :], mask=mask, other=0.0) * share[:, None], 0)
    tl.store(out + unit * D + d, (acc / total).to(out.dtype.element_ty))
    if unit % H == 0:
        counted = tl.where(tl.load(alive + b) != 0, 1, 0)
        tl.store(lengths + b, tl.load(lengths + b) + counted)
