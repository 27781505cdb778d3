"""Context-dependent associative recall: Temporal SwiLA against its rivals at the same state size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from swila.experiments.by_name import by_name
from swila.experiments.training_run import TrainingRun
from swila.layers import RoutingTrace, SwiLA
from swila.models import SyntheticModel, SyntheticModelConfig
from swila.tasks import CDAR, Examples
from swila.training import TrainingConfig

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


@dataclass(frozen=True)
class Preset:
    """An experiment's size: the task, the models and how they are trained.

    With C contexts, SwiLA has J = C mixtures in one head, DeltaNet C heads, DN-MoM C memories; all heads have half the
    model's width, so that every recurrent model has a state of ``C (d/2)²`` scalars.
    """

    summary: str
    task: CDAR
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
    attention_heads: int = 4


PRESETS = {
    "tiny": Preset(
        summary="3 contexts of 2 keys, length 32: minutes on a CPU",
        task=CDAR(vocab_size=32, num_contexts=3, num_keys=2, length=32),
        train_examples=20_000,
        test_examples=500,
        models=("temporal-swila", "swila", "deltanet"),
        hidden_sizes=(16,),
        layers=(1,),
        lrs=(5e-3,),
        seeds=3,
        training=TrainingConfig(steps=1200, warmup_steps=75, clip=1.0, eval_every=50),
        router_projection="swiglu:64",
        temporal_bias=-2.0,
        noise=False,
        embed_dropout=0.0,
        init_std=0.3,
        attention_heads=2,
    ),
    "small": Preset(
        summary="4 contexts of 8 keys, length 256: for one GPU",
        task=CDAR(vocab_size=1024, num_contexts=4, num_keys=8, length=256),
        train_examples=20_000,
        test_examples=1_000,
        models=("temporal-swila", "swila", "deltanet", "dn-mom"),
        hidden_sizes=(32, 64),
        layers=(1,),
        lrs=(1e-3, 3e-3, 1e-2),
        seeds=1,
        training=TrainingConfig.over_epochs(20, 20_000, 64, schedule="cosine", clip=1.0),
        router_projection="swiglu:256",
        temporal_bias=-2.0,
        noise=True,
        embed_dropout=0.0,
        init_std=0.1,
    ),
    "paper": Preset(
        summary="4 contexts of 32 keys, length 1024, as in the paper: hours on one GPU",
        task=CDAR(),
        train_examples=100_000,
        test_examples=3_000,
        models=("temporal-swila", "swila", "deltanet", "dn-mom", "attention"),
        hidden_sizes=(32, 64, 128, 256),
        layers=(1, 2),
        lrs=(10**-3.5, 1e-3, 10**-2.5, 1e-2),
        seeds=3,
        training=TrainingConfig.over_epochs(50, 100_000, 64, schedule="cosine-epochs"),
        router_projection="swiglu:256",
        temporal_bias=0.0,
        noise=True,
        embed_dropout=0.1,
        init_std=0.02,
    ),
}


def mixer_of(model: str, preset: Preset, hidden_size: int) -> tuple[str, dict[str, Any]]:
    """The sequence layer of a model, and its options; all with a short convolution of width 2."""
    by_name("model", model, MODELS)
    C = preset.task.num_contexts
    conv = {"use_short_conv": True, "conv_size": 2}
    head = {"head_dim": hidden_size // 2, **conv}
    if model in ("swila", "temporal-swila"):
        temporal = model == "temporal-swila"
        options = {
            "num_heads": 1,
            "num_mixtures": C,
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
        return model, {"num_heads": C, "use_output_gate": False} | head
    if model == "dn-mom":
        if C < 4:  # one memory a token, with a weight of 1: nothing of the task would reach the router
            raise ValueError(f"model dn-mom needs 4 contexts or more to route between, this preset has {C}")
        return "mom", {"num_heads": 1, "num_memories": C, "top_k": C // 2} | head
    if model == "attention":
        return "attention", {"num_heads": preset.attention_heads, "qkv_bias": True, "out_bias": True} | conv
    if model == "fox":
        return "fox", {"num_heads": preset.attention_heads, "qkv_bias": True} | conv
    raise AssertionError(model)


def make_runs(
    preset: str,
    models: Sequence[str] | None = None,
    hidden_sizes: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    lrs: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    steps: int | None = None,
) -> list[TrainingRun]:
    """The runs of a preset, with its models, sizes, learning rates, seeds or steps replaced where given.

    They come seed by seed, so that the first ones already show every model.
    """
    p = by_name("preset", preset, PRESETS)
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
        training = replace(p.training, lr=lr, seed=seed, steps=steps or p.training.steps)
        run = TrainingRun(
            model, f"d{hidden_size}-l{num_layers}", p.task, config, training, p.train_examples, p.test_examples
        )
        if not _left_out(preset, models, run):
            runs.append(run)
    return runs


def _left_out(preset: str, models: Sequence[str] | None, run: TrainingRun) -> bool:
    """The paper's grid has Temporal SwiLA with one layer and up to d = 128; named explicitly, any size is run."""
    size, layers = run.model.hidden_size, run.model.num_layers
    return preset == "paper" and models is None and run.label == "temporal-swila" and (size > 128 or layers > 1)


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per model and size: best and mean accuracy over learning rates and seeds, and how many solved the task.

    As in the paper the accuracy of a run is the best over its evaluations on the test set.
    """
    rows: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for run in runs:
        rows.setdefault((run["model"], run["hidden_size"], run["num_layers"]), []).append(run)
    table = []
    for (model, hidden_size, layers), members in rows.items():
        over = [run for run in members if run.get("best") is not None]
        scores = [run["best"] for run in over]
        best = max(over, key=lambda run: run["best"], default=None)
        table.append(
            {
                "model": model,
                "hidden_size": hidden_size,
                "layers": layers,
                "state": members[0]["state"],
                "parameters": members[0]["parameters"],
                "best": max(scores, default=None),
                "mean": sum(scores) / len(scores) if scores else None,
                "solved": sum(run["status"] == "solved" for run in over),
                "runs": len(members),
                "best_run": best["name"] if best else None,
                "best_step": best["best_step"] if best else None,
                "not_over": {run["name"]: run["status"] for run in members if "best" not in run},
                "diverged": [run["name"] for run in over if run["status"] == "diverged"],
            }
        )
    return table


def routing(model: SyntheticModel, examples: Examples) -> RoutingTrace:
    """Where the last SwiLA layer of a model sends the tokens of some examples."""
    layer = model.mixers[-1]
    if not isinstance(layer, SwiLA):
        raise ValueError(f"model must end with a SwiLA layer to look at, got {type(layer).__name__}")
    seen: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(examples.inputs)
    handle.remove()
    return layer.trace(seen[0])


def shares_by_context(trace: torch.Tensor, context: torch.Tensor, num_contexts: int) -> torch.Tensor:
    """Mean of a trace ``[B, T, H, J, V]`` over the tokens of each context 1 ... C, ``[C, H, J, V]``."""
    return torch.stack([trace[context == c].mean(0) for c in range(1, num_contexts + 1)])
