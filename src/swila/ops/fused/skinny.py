"""Products of a few rows with weight matrices, for decode steps: bound by the time to read the weights.

One launch multiplies the input with up to ten matrices and adds a residual, or applies SwiGLU. A single row is
normalised by every program again: it is small, and stays in the cache. More rows are normalised by a launch of its own;
within the loop of the product this took longer (with 64 and 128 rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from swila.ops.devices import shared_memory
from swila.ops.fused.rms_norm import rms_norm

MOST_ROWS = 128
MOST_MATRICES = 10
MOST_COUNTERS = 1024  # products with more tiles than this are not split
GEMV_ROWS = 1  # up to so many rows without matrix units
RESERVED = 16 * 1024  # bytes of shared memory for what is not a tile
_GATES = {"silu": 1, "sigmoid": 2}
_counters: dict[torch.device, Tensor] = {}


class Prologue(NamedTuple):
    """What happens to the input ``x [B, K]`` before the product.

    Attributes:
        weight: Weight of an RMSNorm; None for no norm.
        eps: Epsilon of the norm.
        head_dim: Width of the groups that are normalised, a power of two of at least 16; None for the whole row.
        gate: ``[B, K]``, of which an activation multiplies the normalised input; None for no gate.
        activation: ``"silu"`` or ``"sigmoid"``.
    """

    weight: Tensor | None = None
    eps: float = 0.0
    head_dim: int | None = None
    gate: Tensor | None = None
    activation: str = "silu"

    def apply(self, x: Tensor) -> Tensor:
        """Return the input of the product, in float32."""
        x = x.float()
        if self.weight is not None:
            heads = x if self.head_dim is None else x.unflatten(-1, (-1, self.head_dim))
            heads = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + self.eps) * self.weight.float()
            x = heads.view_as(x)
        if self.gate is not None:
            gate = self.gate.float()
            x = x * (F.silu(gate) if self.activation == "silu" else gate.sigmoid())
        return x

    def norm(self, x: Tensor) -> Tensor:
        """Return the input of the product in the dtype of ``x``, by a launch of its own; there must be a norm."""
        assert self.weight is not None
        shape = (-1, self.head_dim or x.shape[1])
        gate = None if self.gate is None else self.gate.unflatten(1, shape)
        return rms_norm(x.unflatten(1, shape), self.weight, self.eps, gate, self.activation).flatten(1)


NOTHING = Prologue()


def skinny_reference(
    x: Tensor,
    weights: Sequence[Tensor],
    prologue: Prologue = NOTHING,
    residual: Tensor | None = None,
    swiglu: bool = False,
) -> Tensor:
    """:func:`skinny` in plain torch, in float32."""
    inner = prologue.apply(x)
    parts = [inner @ weight.float().mT for weight in weights]
    y = F.silu(parts[0]) * parts[1] if swiglu else torch.cat(parts, -1)
    return (y if residual is None else y + residual.float()).to(x.dtype)


def skinny(
    x: Tensor,
    weights: Sequence[Tensor],
    prologue: Prologue = NOTHING,
    residual: Tensor | None = None,
    swiglu: bool = False,
) -> Tensor:
    """Return ``[f(x) W_0ᵀ, f(x) W_1ᵀ, ...]`` side by side, ``[B, N_0 + N_1 + ...]``, accumulated in float32.

    Args:
        x: Input ``[B, K]`` of up to 128 rows; the last dimension is contiguous.
        weights: Up to ten matrices ``[N_i, K]``, contiguous, with the dtype of ``x``.
        prologue: Normalisation and gate of the input, f.
        residual: Added to the result, ``[B, N_0 + ...]``.
        swiglu: Whether to return ``silu(f(x) W_0ᵀ) ⊙ f(x) W_1ᵀ`` of two matrices of the same shape instead.

    There is no derivative. On the CPU this needs Triton's interpreter.
    """
    from swila.ops.fused import skinny_kernels

    B, K = x.shape
    if B > GEMV_ROWS and prologue.weight is not None:
        x, prologue = prologue.norm(x), NOTHING
    rows = [weights[0].shape[0]] if swiglu else [weight.shape[0] for weight in weights]
    out = x.new_empty(B, sum(rows))
    pointers = [*weights, *[weights[0]] * (MOST_MATRICES - len(weights))]
    counts = [*rows, *[0] * (MOST_MATRICES - len(rows))]
    gate = 0 if prologue.gate is None else _GATES[prologue.activation]
    gates, added = x if prologue.gate is None else prologue.gate, x if residual is None else residual
    strides = x.stride(0), gates.stride(0), added.stride(0), out.stride(0)
    named = {"GATE": gate, "RESIDUAL": residual is not None, "PAIR": swiglu, "K": K}
    if B <= GEMV_ROWS:
        norm, head = 0, 16
        if prologue.weight is not None:
            norm, head = (1, 16) if prologue.head_dim is None else (2, prologue.head_dim)
        scale = x if prologue.weight is None else prologue.weight
        BN, BK = 4 if x.is_cuda else 64, _gemv_chunk(K, head)
        grid = (sum(-(-n // BN) for n in rows),)
        skinny_kernels.gemv[grid](
            x, scale, gates, added, out, *pointers, prologue.eps, *counts, **named, BN=BN, BK=BK, NORM=norm, HEAD=head,
            num_warps=4, maxnreg=128,  # four blocks per multiprocessor
        )  # fmt: skip
        return out
    memory = shared_memory(x.device) if x.is_cuda else None
    plan = plan_product(B, K, rows, swiglu, gate != 0, x.element_size(), memory)
    partial, counters = out, out
    if plan.splits > 1:
        partial = torch.empty(plan.tiles * plan.splits * plan.part, dtype=torch.float32, device=x.device)
        counters = _zeroed(x.device)
    skinny_kernels.product[(plan.tiles, plan.splits)](
        x, gates, added, out, partial, counters, *pointers, B, *strides, *counts, **named,
        BM=plan.BM, BN=plan.BN, BK=plan.BK, PER=plan.per, SPLITS=plan.splits,
        num_warps=plan.warps, num_stages=plan.stages,
    )  # fmt: skip
    return out


class Plan(NamedTuple):
    """Blocks of a product: BM rows, BN outputs, BK inputs at a time, ``per`` inputs per program, parts of floats."""

    BM: int
    BN: int
    BK: int
    per: int
    splits: int
    tiles: int
    part: int
    warps: int
    stages: int


def plan_product(B: int, K: int, rows: Sequence[int], pair: bool, gated: bool, size: int, memory: int | None) -> Plan:
    """Return the blocks of a product: some 100 to 200 programs, each with several tiles of weights on the way.

    Args:
        B: Number of rows of the input.
        K: Inputs of a row.
        rows: Outputs of each matrix.
        pair: Whether a program has the same outputs of two matrices.
        gated: Whether the product multiplies the input by a gate.
        size: Bytes of an element.
        memory: Bytes of shared memory that a program may have; None in the interpreter.
    """
    BM = max(16, 1 << (B - 1).bit_length())
    if BM <= 32:
        BN, BK, wanted, warps, stages = 32, 256 // size, 200, 4, 4
    else:  # a program reads the whole input: fewer outputs at a time only where that is short
        short = K <= 4096 and sum(-(-n // 64) for n in rows) < 100
        BN, BK, wanted, stages = 32 if short and not pair else 64, 128 // size, 100, 6
        warps = 8 if BN == 64 and (BM == 128 or pair) else 4
    tiles, splits = sum(-(-n // BN) for n in rows), 1
    if memory is None:
        wanted, memory = 4, 176 * 1024
    while tiles * splits < wanted and 512 * splits <= K and not (pair and tiles >= 100):
        splits *= 2
    per = -(-K // (splits * BK)) * BK
    splits = -(-K // per)
    stage = (BM * (1 + gated) + BN * (1 + pair)) * BK * size
    stages = max(1, min(stages, (memory - RESERVED) // stage))
    return Plan(BM, BN, BK, per, splits, tiles, BM * BN * (1 + pair), warps, stages)


def _gemv_chunk(K: int, head: int) -> int:
    """Return the number of inputs that a program without matrix units takes at a time."""
    least = max(head, min(1024, 1 << (K - 1).bit_length()))
    return max(least, 2048) if K % 2048 == 0 and K <= 4096 else least


def _zeroed(device: torch.device) -> Tensor:
    """Return counters that are 0, the same for all launches: programs set them back, and decode steps take turns."""
    if device not in _counters:
        _counters[device] = torch.zeros(MOST_COUNTERS, dtype=torch.int32, device=device)
    return _counters[device]
