"""Norms of vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """``x / sqrt(|x|² + eps)`` over the last dimension, computed in float32."""
    full = x if x.dtype == torch.float64 else x.float()
    return (full * torch.rsqrt(full.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def rms_norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """The norm in the precision of its weight, the result in that of ``x`` (which under autocast differ)."""
    return norm(x.to(norm.weight.dtype)).to(x.dtype)
