"""The operands of one step of the recurrence from one product of a token with all its projections, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

MOST_OPERANDS = 7
_KINDS = {"linear": 0, "sigmoid": 1, "decay": 2, "zeros": 3}


class Heads(NamedTuple):
    """Queries, keys or values: convolved, SiLU, and of unit length except for values.

    Attributes:
        column: First column of the projection in the product.
        num_heads: Number of heads, H.
        head_dim: Width of a head, D, a power of two.
        weight: Filters ``[H D, W]`` of a convolution; None for none.
        bias: Bias ``[H D]`` of the convolution, or None.
        state: The last inputs ``[B, W - 1, H D]``; updated in place for alive rows.
    """

    column: int
    num_heads: int
    head_dim: int
    weight: Tensor | None = None
    bias: Tensor | None = None
    state: Tensor | None = None


class Operand(NamedTuple):
    """Another operand ``[B, N]``: a function of columns of the product.

    Attributes:
        kind: ``"linear"``, ``"sigmoid"``, ``"decay"`` (``-exp(rates) softplus(y)``, in float32), or ``"zeros"``.
        width: Number of columns, N.
        column: First column in the product.
        weight: Second matrix ``[N, RANK]`` of a low-rank projection; None to take the product's columns as they are.
        bias: Bias ``[N]``, or None.
        repeat: How often each column of the product is repeated, without ``weight``.
        rates: Logarithms ``[N / group]`` of the rates of a decay.
        group: Number of columns that share a rate.
    """

    kind: str
    width: int
    column: int = 0
    weight: Tensor | None = None
    bias: Tensor | None = None
    repeat: int = 1
    rates: Tensor | None = None
    group: int = 1


def step_operands_reference(
    joint: Tensor, alive: Tensor, heads: Sequence[Heads], others: Sequence[Operand]
) -> list[Tensor]:
    """:func:`step_operands` in plain torch, in float32."""
    found = []
    for i, part in enumerate(heads):
        x = joint[:, part.column : part.column + part.num_heads * part.head_dim]
        y = x.float()
        if part.weight is not None:
            assert part.state is not None
            taps = torch.cat([part.state.to(x.dtype), x.unsqueeze(1)], 1)
            y = torch.einsum("btc,ct->bc", taps.float(), part.weight.float())
            y = y if part.bias is None else y + part.bias.float()
            part.state.copy_(torch.where(alive[:, None, None], taps[:, 1:], part.state))
        y = F.silu(y).unflatten(-1, (part.num_heads, part.head_dim))
        if i < 2:
            y = y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)
        found.append(y.to(joint.dtype))
    for other in others:
        if other.kind == "zeros":
            found.append(joint.new_zeros(len(joint), other.width))
            continue
        if other.weight is None:
            y = joint[:, other.column : other.column + other.width // other.repeat].float()
            y = y.repeat_interleave(other.repeat, -1)
        else:
            y = joint[:, other.column : other.column + other.weight.shape[1]].float() @ other.weight.float().mT
        y = y if other.bias is None else y + other.bias.float()
        if other.kind == "sigmoid":
            y = y.sigmoid()
        elif other.kind == "decay":
            assert other.rates is not None
            y = -other.rates.float().exp().repeat_interleave(other.group) * F.softplus(y)
        found.append(y if other.kind == "decay" else y.to(joint.dtype))
    return found


def step_operands(joint: Tensor, alive: Tensor, heads: Sequence[Heads], others: Sequence[Operand]) -> list[Tensor]:
    """Return q, k and v ``[B, H, D]`` and the other operands ``[B, N]``, contiguous.

    Args:
        joint: Product of the tokens with all projections, ``[B, columns]``, up to 128 rows.
        alive: Rows whose convolutions take in the token, bool ``[B]``.
        heads: Where q, k and v are, and their convolutions: all have one, of the same width, or none has.
        others: The other operands, up to seven.

    There is no derivative. On the CPU this needs Triton's interpreter.
    """
    from swila.ops.fused.step_operands_kernels import operands

    B = len(joint)
    R = min(16, 1 << (B - 1).bit_length())
    BM, BN = max(16, 1 << (B - 1).bit_length()), 64
    blocks = -(-B // R)
    pointers: list[Tensor | None] = []
    sizes: dict[str, int] = {}
    found = []
    for letter, part in zip("qkv", heads, strict=True):
        out = joint.new_empty(B, part.num_heads, part.head_dim)
        found.append(out)
        pointers += [part.weight, part.bias, part.state, out]
        sizes |= {f"C{letter}": part.column, f"H{letter}": part.num_heads, f"D{letter}": part.head_dim}
    programs = blocks * sum(part.num_heads for part in heads)
    for i in range(MOST_OPERANDS):
        if i >= len(others):
            pointers += [None, None, None, None]
            sizes |= {f"{name}{i}": 0 for name in "TCNRQGX"}
            continue
        other = others[i]
        tiles, rank = -(-other.width // BN), 0 if other.weight is None else other.weight.shape[1]
        out = joint.new_empty(B, other.width, dtype=torch.float32 if other.kind == "decay" else joint.dtype)
        found.append(out)
        pointers += [other.weight, other.bias, other.rates, out]
        values = (tiles, other.column, other.width, rank, other.repeat, other.group, _KINDS[other.kind])
        sizes |= {f"{name}{i}": value for name, value in zip("TCNRQGX", values, strict=True)}
        programs += tiles
    taps = 0 if heads[0].weight is None else heads[0].weight.shape[1]
    operands[(programs,)](
        joint, alive, *pointers, joint.stride(0), B, **sizes, TAPS=taps, RB=blocks, R=R, BM=BM, BN=BN, num_warps=4
    )
    return found
