"""L2 and RMS normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Return ``x / sqrt(|x|² + eps)`` over the last dimension, computed in float32 (float64 for float64)."""
    full = x if x.dtype == torch.float64 else x.float()
    return (full * torch.rsqrt(full.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def rms_norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Apply the norm in the dtype of its weight and return the dtype of ``x``; under autocast the two differ."""
    return norm(x.to(norm.weight.dtype)).to(x.dtype)
