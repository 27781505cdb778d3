"""The runs of RegBench: learning a language in context, from few training automata (section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from swila.experiments.by_name import by_name
from swila.experiments.catalogue import select
from swila.experiments.loop import LegalPrediction, Objective, TrainingConfig
from swila.experiments.regbench.presets import PRESETS, Preset
from swila.experiments.training_run import Kind, TrainingRun
from swila.models import SyntheticModel, SyntheticModelConfig
from swila.tasks import RegBench

PAPER = ("temporal-swila", "swila", "dn-mom", "deltanet", "attention")
MODELS = select(*PAPER, "gated-deltanet", "kda", "fox")


def _objective(task: RegBench) -> Objective:
    return LegalPrediction()


KIND = Kind(RegBench, SyntheticModelConfig, SyntheticModel, _objective)


def mixer_of(name: str, hidden_size: int) -> tuple[str, dict[str, Any]]:
    """The sequence layer of a model and its options; the recurrent ones have a short convolution of width 4."""
    model = by_name("model", name, MODELS)
    head = {"head_dim": hidden_size // 4, "use_short_conv": True, "conv_size": 4}
    options: dict[str, Any]
    if model.mixer == "swila":
        options = {"num_heads": 2, "num_mixtures": 2, "balance_marginal": 5e-3, **head}
    elif model.mixer == "mom":
        options = {"num_memories": 4, "top_k": 2, "balance_scale": 0.01, **head}
    elif model.mixer == "attention":
        options = {"num_heads": 4, "out_bias": True}
    elif model.mixer == "fox":
        options = {"num_heads": 4}
    else:
        options = {"num_heads": 4, **head}
    return model.mixer, {**model.options, **options}


def make_runs(
    preset: str,
    models: Sequence[str] | None = None,
    automata: Sequence[int] | None = None,
    lrs: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    epochs: int | None = None,
    patience: int | None = None,
    precision: str | None = None,
) -> list[TrainingRun]:
    """The runs of a preset, with its models, training sets, learning rates, seeds, epochs or precision replaced.

    The runs are ordered by training set, the smallest first, and then by seed. With ``patience``, a run stops after
    that many epochs without a lower validation loss; its learning rate follows the schedule of the whole run.
    """
    p = by_name("preset", preset, PRESETS)
    runs = []
    grid = product(
        sorted(set(automata or p.automata)),
        dict.fromkeys(range(p.seeds) if seeds is None else seeds),
        dict.fromkeys(lrs or (p.lr,)),
        dict.fromkeys(models or PAPER),
    )
    for count, seed, lr, model in grid:
        if count < p.batch_size:
            raise ValueError(f"automata must be at least a batch of {p.batch_size}, got {count}")
        training = _training(p, count, lr, seed, epochs, patience, precision or "bfloat16")
        config = SyntheticModelConfig(
            p.task.vocab_size,
            p.hidden_size,
            p.layers,
            *mixer_of(model, p.hidden_size),
            embed_dropout=0.1,
            gelu="tanh",
            rescaled=("fc2", "o_proj"),
        )
        runs.append(
            TrainingRun(
                KIND,
                model,
                f"n{count}",
                p.task,
                config,
                training,
                count,
                p.held_out,
                p.held_out,
            )
        )
    return runs


def _training(
    p: Preset, count: int, lr: float, seed: int, epochs: int | None, patience: int | None, precision: Any
) -> TrainingConfig:
    """AdamW as in RegBench: warm-up from 1e-6 over a tenth of the steps, then a cosine to a tenth of the rate."""
    steps = max((epochs or p.epochs) * count // p.batch_size, 1)
    eval_every = max(steps // p.looks, 1)
    return TrainingConfig(
        steps,
        p.batch_size,
        lr,
        weight_decay=0.1,
        schedule="cosine",
        warmup_steps=steps // 10,
        warmup_from=min(1e-6, lr),
        min_lr=0.1,
        clip=1.0,
        eval_every=eval_every,
        stop_at=None,
        patience=None if patience is None else math.ceil(patience * count / p.batch_size / eval_every),
        precision=precision,
        seed=seed,
    )
