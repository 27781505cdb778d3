"""Routing diagnostics of every layer, as metrics."""

from __future__ import annotations

from typing import Any

import torch

from swila.layers import SwiLA
from swila.layers.load_balancing import RoutingDiagnostics, routing_diagnostics
from swila.ops import RoutingStats
from swila.pretraining.parallel import World


def track_routing(model: Any) -> None:
    """Let every layer with mixtures keep the routing statistics of its last call."""
    for block in model.model.layers:
        if isinstance(block.mixer, SwiLA) and block.mixer.num_mixtures > 1:
            block.mixer.track_routing = True


@torch.no_grad()
def routing_metrics(model: Any, world: World) -> dict[str, float]:
    """Return the diagnostics of each layer and their means, of the last micro-batches of all ranks.

    Usage and entropy are averaged over the ranks before the diagnostics are computed. There is one transfer to the
    host for all layers. Every rank must call this.

    Returns:
        ``routing/key_utilization_entropy`` and so on, the means over the layers, and ``routing/03/...`` for each layer.
    """
    found = {
        i: block.mixer.last_call.stats
        for i, block in enumerate(model.model.layers)
        if isinstance(block.mixer, SwiLA) and block.mixer.last_call.stats is not None
    }
    if not found:
        return {}
    if world.size > 1:
        flat = torch.cat([part.flatten() for stats in found.values() for part in stats]) / world.size
        torch.distributed.all_reduce(flat)
        pieces = iter(flat.split([part.numel() for stats in found.values() for part in stats]))
        found = {i: RoutingStats(*(next(pieces).view_as(part) for part in stats)) for i, stats in found.items()}
    values = torch.stack([torch.stack(routing_diagnostics(stats)) for stats in found.values()])
    rows = [*values.tolist(), values.mean(0).tolist()]
    prefixes = [*(f"routing/{i:02d}/" for i in found), "routing/"]
    return {
        f"{prefix}{name}": value
        for prefix, row in zip(prefixes, rows, strict=True)
        for name, value in zip(RoutingDiagnostics._fields, row, strict=True)
    }
