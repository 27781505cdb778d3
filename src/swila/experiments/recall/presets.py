"""Associative recall, with contexts (CDAR) or without (MQAR): what both experiments share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

from swila.experiments import settings as open_points
from swila.experiments.by_name import by_name
from swila.experiments.loop import TrainingConfig
from swila.experiments.training_run import TrainingRun
from swila.models import SyntheticModelConfig
from swila.tasks import CDAR, MQAR

MODELS = {
    "temporal-swila": "Temporal SwiLA",
    "swila": "SwiLA",
    "deltanet": "DeltaNet",
    "gated-deltanet": "Gated DeltaNet",
    "kda": "KDA",
    "dn-mom": "DN-MoM",
    "attention": "softmax attention",
    "fox": "FoX",
}
CACHES = ("attention", "fox")  # their state grows with the sequence
SETTINGS = {
    "init_std": float,
    "temporal_bias": float,
    "noise": bool,
    "embed_dropout": float,
    "router_projection": str,
    "conv_on": str,
    "weight_decay": float,
    "clip": float,
    "warmup_steps": int,
    "schedule": str,
}


@dataclass(frozen=True)
class Preset:
    """An experiment's size: the task, the models and how they are trained.

    With M memories, SwiLA has J = M mixtures in one head, DeltaNet M heads, DN-MoM M memories; all heads have half the
    model's width, so that every recurrent model has a state of ``M (d/2)²`` scalars.

    Attributes:
        summary: in a few words.
        task: where the examples come from.
        memories: M; in CDAR as many as contexts.
        train_examples: how many to train on.
        test_examples: how many to judge by.
        models: names of the models.
        hidden_sizes: widths d.
        layers: numbers of blocks.
        lrs: learning rates.
        seeds: how many.
        training: everything else about the training.
        router_projection: of SwiLA's priors.
        temporal_bias: start of the temporal gates' bias; the lower, the longer a context is kept at first.
        noise: on the logits of SwiLA's routers and gates, in training.
        embed_dropout: dropout of the embedded tokens.
        init_std: standard deviation of the initial weights.
        conv_on: where the short convolution sits, on ``"qkv"`` or on the whole ``"input"`` of a sequence layer.
        attention_heads: heads of softmax attention.
    """

    summary: str
    task: CDAR | MQAR
    memories: int
    train_examples: int
    test_examples: int
    models: tuple[str, ...]
    hidden_sizes: tuple[int, ...]
    layers: tuple[int, ...]
    lrs: tuple[float, ...]
    seeds: int
    training: TrainingConfig
    router_projection: str
    temporal_bias: float
    noise: bool
    embed_dropout: float
    init_std: float
    conv_on: str = "qkv"
    attention_heads: int = 4


def mixer_of(model: str, preset: Preset, hidden_size: int) -> tuple[str, dict[str, Any]]:
    """The sequence layer of a model, and its options; all with a short convolution of width 2."""
    by_name("model", model, MODELS)
    M = preset.memories
    conv: dict[str, Any] = {"use_short_conv": True, "conv_size": 2}
    if preset.conv_on != "qkv":
        conv["conv_on"] = preset.conv_on
    head = {"head_dim": hidden_size // 2, **conv}
    if model in ("swila", "temporal-swila"):
        temporal = model == "temporal-swila"
        options = {
            "num_heads": 1,
            "num_mixtures": M,
            "temporal": temporal,
            "router_projection": preset.router_projection,
            "beta_projection": "swiglu:32",
            "router_noise": preset.noise,
            "track_routing": True,
        }
        if temporal:
            options |= {"temporal_bias": preset.temporal_bias, "temporal_noise": preset.noise}
        return "swila", options | head
    if model in ("deltanet", "gated-deltanet", "kda"):
        return model, {"num_heads": M, "use_output_gate": False} | head
    if model == "dn-mom":
        if M < 4:  # one memory a token, with a weight of 1: nothing of the task would reach the router
            raise ValueError(f"model dn-mom needs 4 memories or more to route between, this preset has {M}")
        return "mom", {"num_heads": 1, "num_memories": M, "top_k": M // 2} | head
    if model == "attention":
        return "attention", {"num_heads": preset.attention_heads, "qkv_bias": True, "out_bias": True} | conv
    if model == "fox":
        return "fox", {"num_heads": preset.attention_heads, "qkv_bias": True} | conv
    raise AssertionError(model)


def make_runs(
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

    They come seed by seed, so that the first ones already show every model. ``settings`` replaces open points of the
    preset (:data:`SETTINGS`); what differs then is part of the names of the runs.
    """
    if steps is not None and epochs is not None:
        raise ValueError(f"steps and epochs both say how long to train, got {steps} and {epochs}; leave one out")
    p, variant = open_points.apply(by_name("preset", preset, presets), settings or {}, SETTINGS)
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
        each.sizes()  # what a model cannot be made of is told before anything is run
    return runs


def _left_out(preset: str, models: Sequence[str] | None, run: TrainingRun) -> bool:
    """The paper's grid has Temporal SwiLA with one layer and up to d = 128; named explicitly, any size is run."""
    size, layers = run.model.hidden_size, run.model.num_layers
    return preset == "paper" and models is None and run.label == "temporal-swila" and (size > 128 or layers > 1)


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per model, size, variant and length: best and mean accuracy over learning rates, how many runs solved it.

    As in the paper the accuracy of a run is the best over its evaluations on the test set. The mean is that over
    learning rates, of each the mean over its seeds. Runs of different lengths are not put together: ``length`` is then
    the planned number of steps, otherwise nothing.
    """
    rows: dict[tuple[str, int, int, str, int], list[dict[str, Any]]] = {}
    for run in runs:
        rows.setdefault(row_of(run), []).append(run)
    several = len({planned for *_, planned in rows}) > 1
    table = []
    for (model, hidden_size, layers, variant, planned), members in rows.items():
        over = [run for run in members if run.get("best") is not None]
        scores = [run["best"] for run in over]
        rates = sorted({run["lr"] for run in over})
        best = max(over, key=lambda run: run["best"], default=None)
        table.append(
            {
                "model": model,
                "hidden_size": hidden_size,
                "layers": layers,
                "variant": variant,
                "length": f"{planned:,}" if several else "",
                "planned_steps": planned,
                "state": members[0]["state"],
                "parameters": members[0]["parameters"],
                "best": max(scores, default=None),
                "mean": mean_over_rates([(run["lr"], run["best"]) for run in over]),
                "lrs": rates,
                "solved": sum(run["status"] == "solved" for run in over),
                "runs": len(members),
                "names": [run["name"] for run in members],
                "best_run": best["name"] if best else None,
                "best_step": best["best_step"] if best else None,
                "unfinished": {run["name"]: run["status"] for run in members if "best" not in run},
                "diverged": [run["name"] for run in over if run["status"] == "diverged"],
            }
        )
    return table


def headline(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a preset as it is, without variants; of a model and size that has several lengths, the longest."""
    plain = sorted((row for row in rows if not row["variant"]), key=lambda row: row["planned_steps"])
    longest = {(row["model"], row["layers"], row["hidden_size"]): row for row in plain}
    return [row for row in rows if any(row is kept for kept in longest.values())]


def row_of(run: dict[str, Any]) -> tuple[str, int, int, str, int]:
    """Which row a run belongs to: model, width, depth, variant, and how long it was to be trained."""
    return run["model"], run["hidden_size"], run["num_layers"], run.get("variant", ""), run.get("planned_steps", 0)


def mean_over_rates(runs: Sequence[tuple[float, float]]) -> float | None:
    """Of (learning rate, score): the mean over learning rates, of each the mean over its seeds; None of none."""
    by_rate: dict[float, list[float]] = {}
    for lr, score in runs:
        by_rate.setdefault(lr, []).append(score)
    return fmean(fmean(scores) for scores in by_rate.values()) if by_rate else None
