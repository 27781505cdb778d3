"""Norms and feed-forward layers of the language model, by fused kernels where they serve the modules."""

from __future__ import annotations

from torch import Tensor, nn

from swila.layers.projection import SwiGLU
from swila.ops.fused.feed_forward import feed_forward, feed_forward_serves
from swila.ops.fused.modules import is_plain
from swila.ops.fused.rms_norm import add_rms_norm, norm_serves, rms_norm


def normalize(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Return ``norm(x)``."""
    eps = _plain_eps(norm)
    if eps is not None and norm_serves(x, norm.weight):
        return rms_norm(x, norm.weight, eps)
    return norm(x)


def add_feed_forward(norm: nn.RMSNorm, mlp: SwiGLU, x: Tensor, y: Tensor) -> Tensor:
    """Return ``s + mlp(norm(s))`` with ``s = x + y``.

    If the modules are plain and gradients are needed, this is one function that keeps little for the backward pass.
    Otherwise the addition is fused with the norm where possible, and the MLP is called as a module.

    Args:
        norm: Norm before the MLP.
        mlp: The MLP.
        x: Residual stream ``[B, T, hidden_size]``.
        y: Output of the mixer, of the same shape.
    """
    eps = _plain_eps(norm)
    if eps is None or x.shape != y.shape or not norm_serves(x, norm.weight, y):
        total = x + y
        return total + mlp(norm(total))
    weights = mlp.plain_weights() if is_plain(mlp, SwiGLU) else None
    if weights is not None and feed_forward_serves(x, y, norm.weight, *weights):
        return feed_forward(x, y, norm.weight, eps, *weights)
    total, normed = add_rms_norm(x, y, norm.weight, eps)
    return total + mlp(normed)


def _plain_eps(norm: nn.RMSNorm) -> float | None:
    """Return the epsilon of a norm that need not be called as a module."""
    return norm.eps if is_plain(norm, nn.RMSNorm) and norm.weight is not None else None
