"""Communication of an update, as an estimate: what each GPU sends, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swila.pretraining.gpus import Gpu
    from swila.pretraining.memory import Sizes

GPUS_PER_NODE = 8
EFFICIENCY = 0.7  # part of a link's bandwidth that collective operations reach


@dataclass(frozen=True)
class Communication:
    """Bytes that one GPU sends in an update, and seconds.

    Attributes:
        gather_forward: Weights gathered for the forward passes.
        gather_backward: Weights of the blocks, gathered again for the backward passes.
        reduce_scatter: Gradients in float32, summed and divided among the ranks, after each backward pass.
        all_reduce: Gradients summed over copies of the weights (HSDP).
        seconds: Time of all of it.
    """

    gather_forward: float
    gather_backward: float
    reduce_scatter: float
    all_reduce: float
    seconds: float

    @property
    def total(self) -> float:
        """Bytes of all operations."""
        return self.gather_forward + self.gather_backward + self.reduce_scatter + self.all_reduce


def communication(sizes: Sizes, ranks: int, replicas: int, micro_batches: int, width: int, gpu: Gpu) -> Communication:
    """Return the communication of an update.

    In a ring of N ranks, each sends ``(N - 1) / N`` of what is gathered or scattered, and twice that to sum on all.

    Args:
        sizes: Sizes of the model.
        ranks: Number of ranks that share one copy of the weights; consecutive ranks.
        replicas: Number of copies.
        micro_batches: Number of micro-batches of an update.
        width: Bytes of a gathered weight.
        gpu: The GPU.
    """
    ring = (ranks - 1) / ranks
    total, blocks = sizes.total, sum(sizes.blocks)
    forward = micro_batches * ring * width * total
    backward = micro_batches * ring * width * blocks
    scatter = micro_batches * ring * 4 * total
    reduce = micro_batches * 2 * (replicas - 1) / replicas * 4 * sizes.per_rank(ranks)
    # rings over consecutive ranks leave a node once, through all of its adapters; copies of a part have one each
    within = gpu.link if ranks <= GPUS_PER_NODE else min(gpu.link, GPUS_PER_NODE * gpu.network)
    between = gpu.link if ranks * replicas <= GPUS_PER_NODE else min(gpu.link, gpu.network)
    seconds = ((forward + backward + scatter) / within + reduce / between) / EFFICIENCY
    return Communication(forward, backward, scatter, reduce, seconds)
