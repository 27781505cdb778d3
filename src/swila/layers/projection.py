"""Projections by name: full, low-rank, or SwiGLU."""

from __future__ import annotations

import re

from torch import Tensor, nn

from swila.ops.fused.feed_forward import mlp_serves, swiglu_mlp
from swila.ops.fused.modules import is_plain_linear
from swila.ops.fused.swiglu import swiglu


class SwiGLU(nn.Module):
    """``W_out (silu(W_gate x) ⊙ W_in x)``, without biases."""

    def __init__(self, in_features: int, inner: int, out_features: int) -> None:
        super().__init__()
        self.gate = nn.Linear(in_features, inner, bias=False)
        self.up = nn.Linear(in_features, inner, bias=False)
        self.down = nn.Linear(inner, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``."""
        weights = self.plain_weights()
        if weights is not None and mlp_serves(x, *weights):
            return swiglu_mlp(x, *weights)
        return self.down(swiglu(self.gate(x), self.up(x)))

    def plain_weights(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the weights of gate, up and down; None if one of them must be called as a module."""
        if not (is_plain_linear(self.gate) and is_plain_linear(self.up) and is_plain_linear(self.down)):
            return None
        return self.gate.weight, self.up.weight, self.down.weight


def make_projection(name: str, kind: str, in_features: int, out_features: int, bias: bool = False) -> nn.Module:
    """Return a projection of the given kind.

    Args:
        name: Name of the option that selects the kind, for the error message.
        kind: ``"linear"``, ``"low-rank:16"`` (two matrices, rank 16) or ``"swiglu:256"`` (inner width 256).
        in_features: Width of the input.
        out_features: Width of the output.
        bias: Whether the last matrix has a bias; not for SwiGLU.
    """
    match = re.fullmatch(r"linear|(low-rank|swiglu):([1-9]\d*)", kind) if isinstance(kind, str) else None
    if match is None or (bias and match[1] == "swiglu"):
        raise ValueError(f"{name} must be 'linear', 'low-rank:RANK' or 'swiglu:WIDTH', got {kind!r}")
    if match[1] is None:
        return nn.Linear(in_features, out_features, bias=bias)
    inner = int(match[2])
    if match[1] == "swiglu":
        return SwiGLU(in_features, inner, out_features)
    return nn.Sequential(nn.Linear(in_features, inner, bias=False), nn.Linear(inner, out_features, bias=bias))
