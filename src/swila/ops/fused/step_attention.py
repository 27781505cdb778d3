"""Softmax attention of one new token per row over its cached keys and values."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

LINES = 32  # keys that a program reads at a time
IN_FLIGHT = 3  # blocks of so many keys and values that are on the way to a program
MOST_BYTES = 96 * 1024  # of shared memory for them: what every GPU that is served has
PROGRAMS = 528


def step_attention(
    joint: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    alive: Tensor,
    num_heads: int,
    theta: float | None = None,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Return the output ``[B, H D]`` of causal attention; the caches take in the new token of each row.

    Key and value are stored in slot ``lengths[b]``, and the length of alive rows grows by one: what other rows store is
    overwritten by their next token.

    Args:
        joint: Queries, keys and values side by side, ``[B, (H + 2 H_kv) D]`` or wider, before norm and rotation.
        keys: Cached keys ``[B, S, H_kv, D]``; rows may be further apart than their slots.
        values: Cached values, with the strides of ``keys``.
        lengths: Number of tokens in the cache of each row, int64 ``[B]``.
        alive: Rows whose length grows, bool ``[B]``.
        num_heads: Number of query heads, H, a multiple of H_kv.
        theta: Base of the rotary positions; None for none.
        norms: Weights ``[D]`` of the RMSNorms of queries and keys, or None.
        eps: Epsilon of the norms.

    There is no derivative. On the CPU this needs Triton's interpreter.
    """
    from swila.ops.fused import step_attention_kernels as kernels

    B, slots, HK, D = keys.shape
    H = num_heads
    q = joint.new_empty(B, H, D)
    blocks = -(-H // 8) + 2 * -(-HK // 8)
    q_weight, k_weight = norms or (joint, joint)
    kernels.place[(B, blocks)](
        joint, q_weight, k_weight, lengths, q, keys, values, joint.stride(0), keys.stride(0), keys.stride(1), eps,
        LOG_THETA=0.0 if theta is None else math.log(theta),
        H=H, HK=HK, D=D, ROTATES=theta is not None, NORM=norms is not None, HB=8, num_warps=2,
    )  # fmt: skip
    splits = min(-(-PROGRAMS // (B * H)), -(-slots // (2 * LINES))) if joint.is_cuda else 1 + (slots > LINES)
    per = -(-slots // (splits * LINES)) * LINES
    splits = -(-slots // per)
    partial = torch.empty(B * H * splits * (D + 2), dtype=torch.float32, device=joint.device)
    kernels.attend[(B * H, splits)](
        q, keys, values, lengths, partial, keys.stride(0), keys.stride(1), math.log2(math.e) / math.sqrt(D),
        per, splits, H=H, HK=HK, D=D, BS=LINES, STAGES=stages(D, keys.element_size()), num_warps=2,
    )  # fmt: skip
    out = joint.new_empty(B, H * D)
    kernels.combine[(B * H,)](
        partial, out, lengths, alive, splits, H=H, D=D, PADDED=1 << (splits - 1).bit_length(), num_warps=1
    )
    return out


def stages(D: int, size: int) -> int:
    """Return how many blocks of keys and values a program has on the way, for elements of a size in bytes."""
    return max(1, min(IN_FLIGHT, MOST_BYTES // (2 * LINES * D * size)))


def step_attention_reference(
    joint: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    alive: Tensor,
    num_heads: int,
    theta: float | None = None,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    """:func:`step_attention` in plain torch, in float32."""
    B, slots, HK, D = keys.shape
    parts = joint[:, : (num_heads + 2 * HK) * D].float().unflatten(-1, (-1, D)).split([num_heads, HK, HK], 1)
    q, k, v = parts
    if norms is not None:
        q, k = (F.rms_norm(t, (D,), weight.float(), eps) for t, weight in zip((q, k), norms, strict=True))
    if theta is not None:
        frequency = theta ** (-torch.arange(D // 2, device=joint.device, dtype=torch.float64) / (D // 2))
        angle = (lengths[:, None] * frequency)[:, None]
        cos, sin = angle.cos().float(), angle.sin().float()
        (a, b), (c, d) = q.chunk(2, -1), k.chunk(2, -1)
        q, k = (
            torch.cat([a * cos - b * sin, b * cos + a * sin], -1),
            torch.cat([c * cos - d * sin, d * cos + c * sin], -1),
        )
    row = torch.arange(B, device=joint.device)
    keys[row, lengths], values[row, lengths] = k.to(keys.dtype), v.to(values.dtype)
    visible = torch.arange(slots, device=joint.device) <= lengths[:, None]
    each = num_heads // HK
    logits = torch.einsum("bhd,bshd->bhs", q.to(joint.dtype).float(), keys.float().repeat_interleave(each, 2))
    weights = (logits / math.sqrt(D)).masked_fill(~visible[:, None], float("-inf")).softmax(-1)
    lengths += alive
    return torch.einsum("bhs,bshd->bhd", weights, values.float().repeat_interleave(each, 2)).flatten(1).to(joint.dtype)
