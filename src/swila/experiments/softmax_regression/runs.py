"""Approximating a head of softmax attention with a state of fixed size: SwiLA against DeltaNet (section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from swila.experiments.by_name import by_name
from swila.experiments.experiment import choose_by_validation
from swila.experiments.loop import TrainingConfig
from swila.experiments.training_run import TrainingRun
from swila.models import RegressionModelConfig
from swila.tasks import SoftmaxRegression

MODELS = {"swila": "SwiLA", "deltanet": "DeltaNet", "attention": "softmax attention"}
MOST_MIXTURES = 16


@dataclass(frozen=True)
class Preset:
    """The experiment's size: the task, the state budgets and how models are trained.

    A budget B is a state of ``B D²`` scalars: DeltaNet has B heads, SwiLA H heads of J mixtures with ``H J = B``.

    Attributes:
        budgets: all of them.
        factorisations: the (H, J) of SwiLA; None for all with at most 16 mixtures.
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


def configurations(model: str, preset: Preset, budgets: Sequence[int]) -> list[tuple[int, int]]:
    """The (H, J) of a model within some budgets, from small to large."""
    by_name("model", model, MODELS)
    if model == "attention":
        return [(1, 1)]
    if model == "deltanet":
        return [(B, 1) for B in budgets]
    every = [(B // J, J) for B in budgets for J in range(1, min(B, MOST_MIXTURES) + 1) if B % J == 0]
    return [pair for pair in every if preset.factorisations is None or pair in preset.factorisations]


def mixer_of(model: str, preset: Preset, heads: int, mixtures: int) -> tuple[str, dict[str, Any]]:
    """The sequence layer of a model, and its options; heads have D dims, and there is no short convolution."""
    head = {"num_heads": heads, "head_dim": preset.task.dim, "use_short_conv": False}
    if model == "swila":
        router = {"router_projection": preset.router_projection} if mixtures > 1 else {}
        return "swila", {"num_mixtures": mixtures, "balance_marginal": 1e-3, **router, **head}
    if model == "deltanet":
        return "deltanet", head
    return "attention", {"rope_theta": None, "qkv_bias": True, **head}


def make_runs(
    preset: str,
    models: Sequence[str] | None = None,
    budgets: Sequence[int] | None = None,
    lrs: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    steps: int | None = None,
    precision: str | None = None,
) -> list[TrainingRun]:
    """The runs of a preset, with its models, budgets, learning rates, seeds, steps or precision replaced where given.

    They come seed by seed, so that the first ones already show every model.
    """
    p = by_name("preset", preset, PRESETS)
    for budget in budgets or ():
        if budget < 1:
            raise ValueError(f"budget must be at least 1, got {budget}")
    grid = [
        (model, pair)
        for model in dict.fromkeys(models or MODELS)
        for pair in configurations(model, p, sorted(set(budgets or p.budgets)))
    ]
    if budgets and (empty := [model for model in models or MODELS if not any(model == found for found, _ in grid)]):
        raise ValueError(f"budget must have a configuration of {empty[0]} in the preset {preset}, got {list(budgets)}")
    warmup = p.training.warmup_steps * steps // p.training.steps if steps else None
    given = {"steps": steps, "warmup_steps": warmup, "precision": precision}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    runs = []
    for seed, lr in product(dict.fromkeys(range(p.seeds) if seeds is None else seeds), dict.fromkeys(lrs or p.lrs)):
        for model, (H, J) in grid:
            size = f"H{H}J{J}" if model == "swila" else f"H{H}"
            config = RegressionModelConfig(p.task.dim, *mixer_of(model, p, H, J))
            training = replace(p.training, lr=lr, seed=seed, **changed)
            runs.append(TrainingRun(model, size, p.task, config, training, p.train_examples, p.held_out, p.held_out))
    return runs


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per model and configuration; SwiLA's best of a budget is the one with the lowest validation loss."""
    rows = choose_by_validation(runs, ("model", "size"))
    best: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["model"] == "swila" and row["mean"] is not None:
            baseline = best.get(row["state"], row)
            best[row["state"]] = min(baseline, row, key=lambda row: row["validation_loss"])
    for row in rows:
        row["best_of_budget"] = row is best.get(row["state"])
    return rows
