"""What a recipe would take on a number of GPUs: memory, communication and time, without training and without a GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from swila.pretraining.batches import largest_divisor
from swila.pretraining.communication import EFFICIENCY, GPUS_PER_NODE, Communication, communication
from swila.pretraining.cost import assumed_mfu, tokens_per_second
from swila.pretraining.gpus import Gpu, get_gpu
from swila.pretraining.memory import Memory, MemoryEstimate, Sizes
from swila.pretraining.recipe import Recipe
from swila.pretraining.skeleton import skeleton

RESERVE = 0.05  # of a GPU's memory: CUDA's context, fragmentation, temporary tensors


@dataclass(frozen=True)
class Plan:
    """An estimate of what a recipe takes.

    Attributes:
        recipe: Name of the recipe.
        gpu: Kind of GPU.
        gpus: Number of GPUs.
        parameters: Number of elements of the model's parameters.
        shard_size: Number of GPUs that share one copy of the weights.
        per_rank: Elements of the parameters on one GPU.
        micro_batch: Sequences of a forward call on a GPU.
        micro_batches: Forward calls of an update.
        memory: Bytes on one GPU.
        gpu_memory: Bytes that the GPU has.
        largest_micro_batch: Largest micro-batch that fits and divides a GPU's share of the batch; 0 if none fits.
        communication: Bytes that one GPU sends in an update, and seconds.
        compute_seconds: Time of an update without communication.
        mfu: Assumed utilisation of the GPU's peak.
        tokens_per_second: Throughput of all GPUs together.
        hours: Time of the run.
        gpu_hours: The same times the number of GPUs.
        assumptions: What the estimates assume, in words.
    """

    recipe: str
    gpu: str
    gpus: int
    parameters: int
    shard_size: int
    per_rank: int
    micro_batch: int
    micro_batches: int
    memory: Memory
    gpu_memory: float
    largest_micro_batch: int
    communication: Communication
    compute_seconds: float
    mfu: float
    tokens_per_second: float
    hours: float
    gpu_hours: float
    assumptions: list[str]

    @property
    def usable_memory(self) -> float:
        """Bytes of the GPU without the reserve."""
        return (1 - RESERVE) * self.gpu_memory

    @property
    def fits(self) -> bool:
        """Whether the recipe's micro-batch fits."""
        return self.memory.total <= self.usable_memory

    @property
    def step_seconds(self) -> float:
        """Time of an update: communication overlaps with computing."""
        return max(self.compute_seconds, self.communication.seconds)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        return asdict(self)


def plan(recipe: Recipe, gpus: int = 1, gpu: str = "H100") -> Plan:
    """Return what a recipe would take.

    Args:
        recipe: The recipe.
        gpus: Number of GPUs; must divide the batch.
        gpu: Kind of GPU, a key of :data:`swila.pretraining.gpus.GPUS`.
    """
    device, shards = get_gpu(gpu), recipe.execution.shard_size or gpus
    if gpus < 1 or recipe.data.batch_size % gpus:
        raise ValueError(f"gpus must divide data.batch_size = {recipe.data.batch_size}, got {gpus}")
    if gpus % shards:
        raise ValueError(f"execution.shard_size must divide the {gpus} GPUs, got {shards}")
    sizes, replicas, share = Sizes.of(skeleton(recipe)), gpus // shards, recipe.data.batch_size // gpus
    estimate = MemoryEstimate(recipe, sizes, shards, replicated=replicas > 1)
    micro_batch = largest_divisor(share, recipe.execution.micro_batch)
    fitting = [size for size in range(1, share + 1) if share % size == 0]
    fitting = [size for size in fitting if estimate.at(size).total <= (1 - RESERVE) * device.memory]
    sent = communication(sizes, shards, replicas, share // micro_batch, estimate.dtype.itemsize, device)
    compute_seconds = recipe.tokens_per_step / tokens_per_second(recipe, device.name, gpus)
    seconds = max(compute_seconds, sent.seconds)
    return Plan(
        recipe=recipe.name,
        gpu=device.name,
        gpus=gpus,
        parameters=sizes.total,
        shard_size=shards,
        per_rank=sizes.per_rank(shards),
        micro_batch=micro_batch,
        micro_batches=share // micro_batch,
        memory=estimate.at(micro_batch),
        gpu_memory=device.memory,
        largest_micro_batch=max(fitting, default=0),
        communication=sent,
        compute_seconds=compute_seconds,
        mfu=assumed_mfu(recipe),
        tokens_per_second=recipe.tokens_per_step / seconds,
        hours=recipe.schedule.steps * seconds / 3600,
        gpu_hours=gpus * recipe.schedule.steps * seconds / 3600,
        assumptions=_assumptions(recipe, device, gpus),
    )


def _assumptions(recipe: Recipe, gpu: Gpu, gpus: int) -> list[str]:
    found = [
        f"{gpu.name}: {gpu.peak / 1e12:.0f} TFLOP/s in bfloat16 and {gpu.memory / 2**30:.1f} GiB, "
        f"{RESERVE:.0%} of it reserved.",
        f"MFU {assumed_mfu(recipe):.1%}: measured on one H200 at widths 1024 and 2048 with 32,768 tokens per "
        "micro-batch, or that of a related model; smaller micro-batches are slower.",
        "Activations: the tensors that forward and backward of a traced block exchange; temporary tensors of the "
        "backward pass are not counted.",
    ]
    if recipe.model.vocab_size is None:
        vocabulary = recipe.model.config(recipe.data.length).vocab_size
        found.append(f"A vocabulary of {vocabulary:,} tokens: the recipe takes that of the data.")
    if recipe.data.packing == "documents":
        found.append("Packed documents are counted as whole sequences.")
    if recipe.precision == "float32":
        found.append("float32 without TensorFloat-32 has a fifteenth of the peak.")
    if gpus > 1:
        found.append(
            f"Links: {gpu.link / 1e9:.0f} GB/s from a GPU to the others of its node of {GPUS_PER_NODE}, "
            f"and an adapter of {gpu.network / 1e9:g} GB/s for each GPU to other nodes; collectives reach "
            f"{EFFICIENCY:.0%}. Communication overlaps with computing; the slower of the two counts."
        )
    found.append("Validation, checkpoints and restarts are not counted.")
    return found
