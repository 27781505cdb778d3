"""The runs of a recall experiment: a grid of models, sizes, learning rates and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from swila.experiments.by_name import by_name
from swila.experiments.catalogue import CATALOGUE
from swila.experiments.recall.presets import SETTINGS, Preset
from swila.experiments.settings import apply
from swila.experiments.training_run import Kind, TrainingRun
from swila.models import SyntheticModelConfig

MODELS = CATALOGUE


def mixer_of(name: str, preset: Preset, hidden_size: int) -> tuple[str, dict[str, Any]]:
    """The sequence layer of a model and its options; all of them have a short convolution of width 2."""
    model, M = by_name("model", name, MODELS), preset.memories
    conv: dict[str, Any] = {"use_short_conv": True, "conv_size": 2}
    if preset.conv_on != "qkv":
        conv["conv_on"] = preset.conv_on
    head = {"head_dim": hidden_size // 2, **conv}
    options: dict[str, Any]
    if model.mixer == "swila":
        options = {
            "num_heads": 1,
            "num_mixtures": M,
            "router_projection": preset.router_projection,
            "beta_projection": "swiglu:32",
            "router_noise": preset.noise,
            "track_routing": True,
            **head,
        }
        if model.options["temporal"]:
            options |= {"temporal_bias": preset.temporal_bias, "temporal_noise": preset.noise}
    elif model.mixer == "mom":
        if M < 4:  # with one memory a token, of weight 1, the router would get no gradient from the task
            raise ValueError(f"model dn-mom needs 4 memories or more to route between, this preset has {M}")
        options = {"num_memories": M, "top_k": M // 2, **head}
    elif model.mixer == "attention":
        options = {"num_heads": preset.attention_heads, "out_bias": True, **conv}
    elif model.mixer == "fox":
        options = {"num_heads": preset.attention_heads, **conv}
    else:
        options = {"num_heads": M, **head}
    return model.mixer, {**model.options, **options}


def make_runs(
    kind: Kind,
    presets: Mapping[str, Preset],
    preset: str,
    models: Sequence[str] | None = None,
    hidden_sizes: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    lrs: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    precision: Any = None,
    settings: Mapping[str, Any] | None = None,
) -> list[TrainingRun]:
    """The runs of a preset, with its models, sizes, learning rates, seeds or length replaced where given.

    The runs are ordered seed by seed, so that the first ones already cover every model. ``settings`` replaces settings
    of the preset (:data:`~swila.experiments.recall.presets.SETTINGS`); the names of the runs then contain the
    differences.
    """
    if steps is not None and epochs is not None:
        raise ValueError(f"steps and epochs both say how long to train, got {steps} and {epochs}; leave one out")
    p, variant = apply(by_name("preset", preset, presets), settings or {}, SETTINGS)
    if epochs is not None:
        steps = epochs * (p.train_examples // p.training.batch_size)
    runs = []
    grid = product(
        dict.fromkeys(range(p.seeds) if seeds is None else seeds),
        dict.fromkeys(lrs or p.lrs),
        dict.fromkeys(hidden_sizes or p.hidden_sizes),
        dict.fromkeys(layers or p.layers),
        dict.fromkeys(models or p.models),
    )
    for seed, lr, hidden_size, num_layers, model in grid:
        if hidden_size < 4 or hidden_size % 4:
            raise ValueError(f"hidden size must be a multiple of 4, got {hidden_size}")
        mixer, options = mixer_of(model, p, hidden_size)
        config = SyntheticModelConfig(
            p.task.vocab_size,
            hidden_size,
            num_layers,
            mixer,
            options,
            embed_dropout=p.embed_dropout,
            init_std=p.init_std,
        )
        training = replace(
            p.training,
            lr=lr,
            seed=seed,
            steps=steps or p.training.steps,
            precision=precision or p.training.precision,
        )
        run = TrainingRun(
            kind,
            model,
            f"d{hidden_size}-l{num_layers}",
            p.task,
            config,
            training,
            p.train_examples,
            p.test_examples,
            variant=variant,
        )
        if not _left_out(preset, models, run):
            runs.append(run)
    for each in {(run.label, run.size): run for run in runs}.values():
        each.sizes()  # a model that cannot be built is an error before anything is trained
    return runs


def _left_out(preset: str, models: Sequence[str] | None, run: TrainingRun) -> bool:
    """Whether a run is not in the paper's grid, which has Temporal SwiLA with one layer and up to d = 128.

    A model that is named explicitly is run in every size.
    """
    size, layers = run.model.hidden_size, run.model.num_layers
    return preset == "paper" and models is None and run.label == "temporal-swila" and (size > 128 or layers > 1)
