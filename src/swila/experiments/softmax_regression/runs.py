"""The runs of softmax regression: SwiLA and DeltaNet learn what a head of softmax attention does (section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from swila.experiments.by_name import by_name
from swila.experiments.catalogue import select
from swila.experiments.loop import Objective, Regression
from swila.experiments.softmax_regression.presets import PRESETS, Preset
from swila.experiments.training_run import Kind, TrainingRun
from swila.models import RegressionModel, RegressionModelConfig
from swila.tasks import ExampleTensors, SoftmaxRegression

MODELS = select("swila", "deltanet", "attention")
MOST_MIXTURES = 16


def _objective(task: SoftmaxRegression) -> Objective:
    return Regression()


def _examples_on_device(task: SoftmaxRegression, count: int, split: str, seed: int, device: str) -> ExampleTensors:
    return task.examples(count, split, seed, device)


KIND = Kind(SoftmaxRegression, RegressionModelConfig, RegressionModel, _objective, _examples_on_device)


def configurations(model: str, preset: Preset, budgets: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs (H, J) of a model for some budgets, from small to large."""
    by_name("model", model, MODELS)
    if model == "attention":
        return [(1, 1)]
    if model == "deltanet":
        return [(B, 1) for B in budgets]
    every = [(B // J, J) for B in budgets for J in range(1, min(B, MOST_MIXTURES) + 1) if B % J == 0]
    return [pair for pair in every if preset.factorisations is None or pair in preset.factorisations]


def mixer_of(name: str, preset: Preset, heads: int, mixtures: int) -> tuple[str, dict[str, Any]]:
    """The sequence layer of a model and its options; heads have D dims, and there is no short convolution."""
    model = by_name("model", name, MODELS)
    options: dict[str, Any] = {"num_heads": heads, "head_dim": preset.task.dim, "use_short_conv": False}
    if model.mixer == "swila":
        options |= {"num_mixtures": mixtures, "balance_marginal": 1e-3}
        if mixtures > 1:
            options["router_projection"] = preset.router_projection
    if model.mixer == "attention":
        options["rope_theta"] = None
    return model.mixer, {**model.options, **options}


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

    The runs are ordered seed by seed, so that the first ones already cover every model.
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
            runs.append(
                TrainingRun(KIND, model, size, p.task, config, training, p.train_examples, p.held_out, p.held_out)
            )
    return runs
