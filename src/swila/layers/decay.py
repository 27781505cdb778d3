"""The decay of a recurrent state."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swila.layers.projection import make_projection


class DecayGate(nn.Module):
    """``log α = -exp(A) softplus(W x + b) <= 0``, as in Mamba-2, Gated DeltaNet and KDA.

    Each of ``groups`` (heads, or heads times mixtures) has a rate ``exp(A)`` and ``width`` decays. Initially, rates are
    uniform in [``slowest``, 16] and ``softplus(b)`` is log-uniform in [0.001, 0.1].

    Args:
        hidden_size: Width of the input.
        groups: Number of rates.
        width: Number of decays per group.
        projection: Kind of ``W``; see :func:`~swila.layers.projection.make_projection`.
        slowest: Lower bound of the initial rates.
    """

    no_weight_decay = ("A_log", "dt_bias")

    def __init__(
        self, hidden_size: int, groups: int, width: int = 1, projection: str = "linear", slowest: float = 1.0
    ) -> None:
        super().__init__()
        self.groups, self.width, self.slowest = groups, width, slowest
        self.proj = make_projection("decay_projection", projection, hidden_size, groups * width)
        self.A_log = nn.Parameter(torch.empty(groups))
        self.dt_bias = nn.Parameter(torch.empty(groups * width))
        for name in self.no_weight_decay:
            getattr(self, name)._no_weight_decay = True  # read by other trainers; lost in a copy
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rates and biases; the projection is not changed."""
        with torch.no_grad():
            self.A_log.uniform_(self.slowest, 16).clamp_min_(1e-4).log_()
            dt = self.dt_bias.uniform_(math.log(1e-3), math.log(1e-1)).exp_()
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus

    def forward(self, x: Tensor, projected: Tensor | None = None) -> Tensor:
        """Return ``log α [..., groups, width]``, in float32 or float64; ``projected`` is ``W x`` if it is known."""
        steps = self.proj(x) if projected is None else projected
        full = steps if steps.dtype == torch.float64 else steps.float()
        rates = self.A_log.to(full.dtype).exp().unsqueeze(-1)
        return -rates * F.softplus(full + self.dt_bias.to(full.dtype)).unflatten(-1, (self.groups, self.width))
