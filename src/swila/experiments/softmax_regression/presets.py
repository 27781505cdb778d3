"""Presets of softmax regression: the task, the state budgets and how models are trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swila.experiments.loop import TrainingConfig
from swila.tasks import SoftmaxRegression


@dataclass(frozen=True)
class Preset:
    """Size of the experiment.

    A budget B is a state of ``B D²`` scalars: DeltaNet has B heads, SwiLA H heads of J mixtures with ``H J = B``.

    Attributes:
        summary: Size and cost in a few words.
        task: Source of the examples.
        train_examples: Number of training examples.
        held_out: Number of validation examples and of test examples.
        budgets: Budgets B.
        factorisations: Pairs (H, J) of SwiLA; None for all with at most 16 mixtures.
        lrs: Learning rates.
        seeds: Number of seeds.
        training: Everything else about the training.
        router_projection: Projection of SwiLA's priors.
    """

    summary: str
    task: SoftmaxRegression
    train_examples: int
    held_out: int
    budgets: tuple[int, ...]
    factorisations: tuple[tuple[int, int], ...] | None
    lrs: tuple[float, ...]
    seeds: int
    training: TrainingConfig
    router_projection: str


def _training(epochs: int, examples: int, batch_size: int, warmup: float) -> TrainingConfig:
    config = TrainingConfig.over_epochs(
        epochs,
        examples,
        batch_size,
        weight_decay=0.0,
        schedule="cosine",
        clip=1.0,
        stop_at=None,
        precision="bfloat16",
    )
    return replace(config, warmup_steps=int(warmup * config.steps))


_PAPER = Preset(
    summary="the paper's task and budgets, all 27 configurations, 10 epochs",
    task=SoftmaxRegression(),
    train_examples=65_536,
    held_out=2_048,
    budgets=(1, 2, 4, 8, 16, 32),
    factorisations=None,
    lrs=(1e-2,),
    seeds=3,
    training=_training(10, 65_536, 256, warmup=0.05),
    router_projection="swiglu:256",
)
PRESETS = {
    "tiny": Preset(
        summary="16 dims, length 64: minutes on a CPU",
        task=SoftmaxRegression(dim=16, length=64, clusters=16),
        train_examples=800 * 64,
        held_out=512,
        budgets=(1, 2, 4),
        factorisations=None,
        lrs=(5e-3,),
        seeds=2,
        training=replace(_training(1, 800 * 64, 64, warmup=0.1), eval_every=100),
        router_projection="swiglu:64",
    ),
    "small": replace(
        _PAPER,
        summary="the paper's task, four budgets, 4 epochs: a minute or two on one GPU",
        budgets=(1, 2, 4, 8),
        factorisations=((1, 1), (1, 2), (2, 2), (1, 4), (2, 4), (4, 2)),
        seeds=1,
        training=_training(4, 65_536, 256, warmup=0.05),
    ),
    "paper": _PAPER,
}
