"""L2 and RMS normalisation."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from swila.ops.fused.modules import is_plain
from swila.ops.fused.rms_norm import norm_serves
from swila.ops.fused.rms_norm import rms_norm as fused_rms_norm
from swila.ops.fused.short_conv import l2_norm as l2_norm


def rms_norm(norm: nn.RMSNorm, x: Tensor, gate: Tensor | None = None, activation: str = "silu") -> Tensor:
    """Apply the norm in the dtype of its weight and return the dtype of ``x``; under autocast the two differ.

    Args:
        norm: The norm, over the last dimension.
        x: Input ``[..., D]``.
        gate: Logits of a gate that multiplies the result, ``[..., D]``, or None.
        activation: Activation of the gate, ``"silu"`` or ``"sigmoid"``.
    """
    if norm.eps is not None and is_plain(norm, nn.RMSNorm) and norm_serves(x, norm.weight, gate):
        return fused_rms_norm(x, norm.weight, norm.eps, gate, activation)
    y = norm(x.to(norm.weight.dtype)).to(x.dtype)
    if gate is None:
        return y
    return y * (F.silu(gate) if activation == "silu" else gate.sigmoid())
