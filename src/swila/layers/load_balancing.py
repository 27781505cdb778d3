r"""Load balancing and routing diagnostics, computed from the operation's routing statistics.

For one side (key or query), with the usage ``u_j`` (mean responsibility over batch and time) and the mean per-token
entropy, per head and output dimension:

    H_marg = -Σ_j u_j log u_j        H_cond = mean_t H(r_t)        L_MI = -λ_marg H_marg + λ_cond H_cond

With equal weights, minimising the loss maximises the mutual information between token and mixture: mixtures are used
evenly, and each token commits to one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from swila.ops import RoutingStats


def marginal_entropy(usage: Tensor) -> Tensor:
    """Return the entropy in nats of ``usage [H, J, V]``, per head and output dimension ``[H, V]``."""
    return torch.special.entr(usage.clamp_min(torch.finfo(usage.dtype).tiny)).sum(1)


def mutual_information_loss(stats: RoutingStats, marginal: float = 1.0, conditional: float = 1.0) -> Tensor:
    """Return ``L_MI``, averaged over heads, output dimensions and the two sides.

    Args:
        stats: Statistics from :func:`swila.switching_delta_rule` with ``routing_stats=True``.
        marginal: Weight λ_marg of even usage.
        conditional: Weight λ_cond of commitment.
    """
    sides = ((stats.key_usage, stats.key_entropy), (stats.query_usage, stats.query_entropy))
    losses = [conditional * H_cond.mean() - marginal * marginal_entropy(usage).mean() for usage, H_cond in sides]
    return (losses[0] + losses[1]) / 2


class RoutingDiagnostics(NamedTuple):
    """Usage of a layer's mixtures, as scalars averaged over heads and output dimensions.

    Attributes:
        key_utilization_entropy: Entropy of the usage divided by log J; 1 if mixtures are used evenly.
        key_routing_entropy: Mean per-token entropy divided by log J; 0 if every token commits to one mixture.
        key_dead_fraction: Fraction of mixtures with usage below ``0.1 / J``.
        query_utilization_entropy: As above, on the query side.
        query_routing_entropy: As above, on the query side.
        query_dead_fraction: As above, on the query side.
    """

    key_utilization_entropy: Tensor
    key_routing_entropy: Tensor
    key_dead_fraction: Tensor
    query_utilization_entropy: Tensor
    query_routing_entropy: Tensor
    query_dead_fraction: Tensor


@torch.no_grad()
def routing_diagnostics(stats: RoutingStats) -> RoutingDiagnostics:
    """Return the paper's three statistics for both sides. Does not synchronise with the host."""
    J = stats.key_usage.shape[1]
    scale = math.log(J) if J > 1 else 1.0
    found = []
    for usage, entropy in ((stats.key_usage, stats.key_entropy), (stats.query_usage, stats.query_entropy)):
        utilization = marginal_entropy(usage).mean() / scale if J > 1 else torch.ones_like(usage[0, 0, 0])
        found += [utilization, entropy.mean() / scale, (usage < 0.1 / J).to(usage.dtype).mean()]
    return RoutingDiagnostics(*found)
