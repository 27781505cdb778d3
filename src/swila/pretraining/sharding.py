"""A check of how a model is divided among many ranks, on one machine and without its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from swila.pretraining.parallel import make_mesh, shard
from swila.pretraining.skeleton import skeleton

if TYPE_CHECKING:
    from swila.pretraining.recipe import Recipe


@dataclass(frozen=True)
class Sharding:
    """How the engine divides a model.

    Attributes:
        parameters: Number of elements of the model's parameters.
        ranks: Number of ranks that share one copy of them.
        per_rank: Elements on the rank with most, rank 0. All ranks allocate as many.
        whole: Names of parameters that are not divided; all of them with one rank.
    """

    parameters: int
    ranks: int
    per_rank: int
    whole: list[str]

    @property
    def padding(self) -> int:
        """Elements that all ranks allocate together beyond the parameters, where ranks do not divide a dimension."""
        return self.ranks * self.per_rank - self.parameters


def check_sharding(recipe: Recipe, gpus: int) -> Sharding:
    """Return how the engine divides the model of a recipe among ``gpus`` ranks, on torch's fake process group.

    No weights are allocated and nothing is sent. The process must not be part of a process group.
    """
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise ValueError("check_sharding must be called outside of a process group, got one that is initialised")
    model = skeleton(recipe)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=gpus)
    try:
        mesh = make_mesh(gpus, recipe.execution, torch.device("cpu"))
        shard(model, mesh, recipe)
        parameters = dict(model.named_parameters())
        whole = [
            name
            for name, p in parameters.items()
            if not isinstance(p, DTensor) or not any(placement.is_shard() for placement in p.placements)
        ]
        per_rank = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters.values())
        total = sum(math.prod(p.shape) for p in parameters.values())
        return Sharding(total, recipe.execution.shard_size or gpus, per_rank, whole)
    finally:
        dist.destroy_process_group()
