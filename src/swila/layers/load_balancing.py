r"""Load balancing and router diagnostics, all from the operation's routing statistics.

For one side (key or query), with the usage ``u_j`` (mean responsibility over batch and time) and the mean per-token
entropy, per head and output dimension:

    H_marg = -Σ_j u_j log u_j        H_cond = mean_t H(r_t)        L_MI = -λ_marg H_marg + λ_cond H_cond

Maximal mutual information between token and mixture: mixtures used evenly, each token committed to one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from swila.ops import RoutingStats


def marginal_entropy(usage: Tensor) -> Tensor:
    """Entropy in nats of ``usage [H, J, V]``, per head and output dim ``[H, V]``."""
    return torch.special.entr(usage.clamp_min(torch.finfo(usage.dtype).tiny)).sum(1)


def mutual_information_loss(stats: RoutingStats, marginal: float = 1.0, conditional: float = 1.0) -> Tensor:
    """``L_MI``, the mean over heads, output dims and the two sides.

    Args:
        stats: of :func:`swila.switching_delta_rule` with ``routing_stats=True``.
        marginal: weight λ_marg of even usage.
        conditional: weight λ_cond of commitment.
    """
    sides = ((stats.key_usage, stats.key_entropy), (stats.query_usage, stats.query_entropy))
    losses = [conditional * H_cond.mean() - marginal * marginal_entropy(usage).mean() for usage, H_cond in sides]
    return (losses[0] + losses[1]) / 2


class RoutingDiagnostics(NamedTuple):
    """How a layer uses its mixtures; scalars, means over heads and output dims.

    Attributes:
        key_utilization_entropy: entropy of the usage over log J; 1 if mixtures are used evenly.
        key_routing_entropy: mean per-token entropy over log J; 0 if every token commits to one mixture.
        key_dead_fraction: fraction of mixtures used less than ``0.1 / J``.
        query_utilization_entropy: the same for the mix at retrieval.
        query_routing_entropy: likewise.
        query_dead_fraction: likewise.
    """

    key_utilization_entropy: Tensor
    key_routing_entropy: Tensor
    key_dead_fraction: Tensor
    query_utilization_entropy: Tensor
    query_routing_entropy: Tensor
    query_dead_fraction: Tensor


@torch.no_grad()
def routing_diagnostics(stats: RoutingStats) -> RoutingDiagnostics:
    """The paper's three statistics for both sides; no host synchronisation, so it can be logged at every step."""
    J = stats.key_usage.shape[1]
    scale = math.log(J) if J > 1 else 1.0
    found = []
    for usage, entropy in ((stats.key_usage, stats.key_entropy), (stats.query_usage, stats.query_entropy)):
        utilization = marginal_entropy(usage).mean() / scale if J > 1 else torch.ones_like(usage[0, 0, 0])
        found += [utilization, entropy.mean() / scale, (usage < 0.1 / J).to(usage.dtype).mean()]
    return RoutingDiagnostics(*found)
