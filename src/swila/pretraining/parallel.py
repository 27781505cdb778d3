"""The ranks of a run, and how a model is divided among them.

One code path serves one CPU, one GPU and ``torchrun`` on many nodes: a process without ``torchrun`` is a world of one
rank. Blocks are sharded with FSDP2 (``fully_shard``), each in a group of its own; embedding, final norm and head form
the root group.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from swila.layers import Attention
from swila.pretraining.recipe import ExecutionRecipe, Recipe

PATIENCE = timedelta(minutes=30)  # ranks wait for the one that verifies data or writes a checkpoint


@dataclass(frozen=True)
class World:
    """The processes of a run.

    Attributes:
        rank: Number of this process.
        size: Number of processes.
        device: Device of this process.
        saving: Process group of checkpoints, which are written while training uses the default group.
    """

    rank: int
    size: int
    device: torch.device
    saving: Any

    @property
    def main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> list[float]:
        """Return the sum of ``values`` over the ranks, the same on every rank; waits for the device."""
        if self.size > 1:
            dist.all_reduce(values)
        return values.tolist()

    def first(self, value: Any) -> Any:
        """Return the value of rank 0, on every rank. An exception as a value is raised on every rank."""
        if self.size > 1:
            shared = [value]
            dist.broadcast_object_list(shared, src=0, group=self.saving)
            value = shared[0]
        if isinstance(value, Exception):
            raise value
        return value


def launched_by_torchrun() -> bool:
    """Whether this process is one of several that ``torchrun`` started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def join_world(device: str) -> Iterator[World]:
    """Join the ranks that ``torchrun`` started, or form a world of this process alone.

    Args:
        device: ``"cpu"`` or ``"cuda"``; with several processes on a machine each takes the GPU of its local rank.
    """
    where = torch.device(device)
    if where.type == "cuda":
        where = torch.device("cuda", int(os.environ.get("LOCAL_RANK", where.index or 0)))
        torch.cuda.set_device(where)
    backend = "cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo"
    if launched_by_torchrun():
        dist.init_process_group(backend, timeout=PATIENCE)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=PATIENCE)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), where, dist.new_group(backend="gloo", timeout=PATIENCE))
    finally:
        dist.destroy_process_group()


def check_shards(size: int, execution: ExecutionRecipe) -> int:
    """Return the number of ranks that share one copy of the weights; ValueError if it does not divide the ranks."""
    shards = execution.shard_size or size
    if size % shards:
        raise ValueError(f"execution.shard_size must divide the {size} ranks, got {shards}")
    return shards


def make_mesh(size: int, execution: ExecutionRecipe, device: torch.device) -> DeviceMesh:
    """Return the mesh of ranks: 1-D (FSDP), or replicas × shards (HSDP) with ``execution.shard_size``."""
    shards = check_shards(size, execution)
    if shards == size:
        return init_device_mesh(device.type, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (size // shards, shards), mesh_dim_names=("replicate", "shard"))


def shard(model: Any, mesh: DeviceMesh, recipe: Recipe) -> None:
    """Divide a :class:`swila.SwiLAForCausalLM` among the ranks of a mesh, in place; one rank keeps it whole.

    Master weights stay float32, divided along their first dimension. With precision bfloat16, a group of parameters is
    gathered in bfloat16 to compute, and gradients are reduced in float32. The gathered weights of a block are freed
    between forward and backward.
    """
    if mesh.size() == 1:
        return
    policy = MixedPrecisionPolicy()
    if recipe.precision == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def checkpoint_activations(model: Any, execution: ExecutionRecipe) -> None:
    """Set the blocks whose activations are recomputed in the backward pass."""
    for i, block in enumerate(model.model.layers):
        if execution.recomputes(i):
            block.gradient_checkpointing = True
            block._gradient_checkpointing_func = _recomputed


def compile_blocks(model: Any, packed: bool) -> None:
    """Compile the forward method of each block; the hooks of FSDP stay outside of the compiled graph.

    Args:
        model: A :class:`swila.SwiLAForCausalLM`.
        packed: Whether sequences are packed documents, whose number differs between calls: torch then compiles a graph
            for any number after the second one. All other shapes are constant. Softmax attention depends on the length
            of the longest document, so its blocks are compiled in parts.
    """
    for block in model.model.layers:
        whole = not (packed and isinstance(block.mixer, Attention))
        block.forward = torch.compile(block.forward, fullgraph=whole, dynamic=None if packed else False)


def _recomputed(function: Any, *args: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=False)
