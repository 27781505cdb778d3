"""RegBench: learning a language in context, from few training automata (section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from swila.experiments.by_name import by_name
from swila.experiments.experiment import choose_by_validation
from swila.experiments.loop import TrainingConfig
from swila.experiments.training_run import TrainingRun
from swila.models import SyntheticModelConfig
from swila.tasks import IGNORE, RegBench, legality, ngram_distribution, total_variation

MODELS = {
    "temporal-swila": "Temporal SwiLA",
    "swila": "SwiLA",
    "dn-mom": "DN-MoM",
    "deltanet": "DeltaNet",
    "attention": "Transformer",
    "gated-deltanet": "Gated DeltaNet",
    "kda": "KDA",
    "fox": "FoX",
}
PAPER = ("temporal-swila", "swila", "dn-mom", "deltanet", "attention")
ORDERS = (1, 2, 3, 4)  # of the n-grams to compare with


@dataclass(frozen=True)
class Preset:
    """The experiment's size: the task, the models, the training sets and how long to train.

    With a model of width d all heads have ``d/4`` dims: SwiLA has 2 heads of 2 mixtures, DeltaNet 4 heads, DN-MoM one
    head in 4 memories of which a token uses 2. So every recurrent model has a state of ``d²/4`` scalars in each layer.

    Attributes:
        automata: sizes of training sets.
        epochs: passes over a training set.
        looks: evaluations on the validation set in a run.
    """

    summary: str
    task: RegBench
    automata: tuple[int, ...]
    held_out: int
    hidden_size: int
    layers: int
    lr: float
    epochs: int
    looks: int
    seeds: int
    batch_size: int = 32


_PAPER = Preset(
    summary="the paper's task, models and training sets: hours on one GPU",
    task=RegBench(),
    automata=(1_000, 2_500, 5_000, 10_000, 20_000, 40_000),
    held_out=500,
    hidden_size=256,
    layers=8,
    lr=2.5e-4,
    epochs=200,
    looks=100,
    seeds=1,
)
PRESETS = {
    "tiny": Preset(
        summary="automata of 4 to 6 states, 8 strings of 2 to 8 symbols: minutes on a CPU",
        task=RegBench(states=(4, 6), alphabet=(4, 8), symbols=8, strings=(8, 8), string_length=(2, 8), held_out=200),
        automata=(1_000,),
        held_out=200,
        hidden_size=64,
        layers=2,
        lr=4e-3,
        epochs=15,
        looks=15,
        seeds=1,
    ),
    "small": replace(
        _PAPER,
        summary="the paper's task and models with 1,000 automata: minutes on one GPU",
        automata=(1_000,),
    ),
    "paper": _PAPER,
}


def mixer_of(model: str, hidden_size: int) -> tuple[str, dict[str, Any]]:
    """The sequence layer of a model, and its options; the recurrent ones with a short convolution of width 4."""
    by_name("model", model, MODELS)
    head = {"head_dim": hidden_size // 4, "use_short_conv": True, "conv_size": 4}
    if model in ("swila", "temporal-swila"):
        temporal = model == "temporal-swila"
        options = {"num_heads": 2, "num_mixtures": 2, "temporal": temporal, "balance_marginal": 5e-3}
        return "swila", options | head
    if model in ("deltanet", "gated-deltanet", "kda"):
        return model, {"num_heads": 4, "use_output_gate": False} | head
    if model == "dn-mom":
        return "mom", {"num_heads": 1, "num_memories": 4, "top_k": 2, "balance_scale": 0.01} | head
    if model == "attention":
        return "attention", {"num_heads": 4, "qkv_bias": True, "out_bias": True}
    if model == "fox":
        return "fox", {"num_heads": 4, "qkv_bias": True}
    raise AssertionError(model)


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

    They come set by set, the smallest first, and seed by seed. With ``patience``, a run ends after so many epochs
    without a lower validation loss; the schedule of the learning rate is that of the whole run.
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


def yardsticks(preset: Preset) -> dict[str, Any]:
    """What n-grams make of the test problems, from each problem's own strings: accuracy and total variation."""
    test = preset.task.examples(preset.held_out, "test")
    scored = test.labels != IGNORE
    found = {}
    for order in ORDERS:
        law = ngram_distribution(test.inputs, order, preset.task.vocab_size, preset.task.separator)
        found[f"{order}-gram"] = {
            "accuracy": legality(law.argmax(-1), test.legal)[scored].double().mean().item(),
            "tv": total_variation(law, test.legal)[scored].double().mean().item(),
        }
    return {"yardsticks": found}


def summarize(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per model and training set."""
    return choose_by_validation(runs, ("model", "train_examples"))


def _training(
    p: Preset, count: int, lr: float, seed: int, epochs: int | None, patience: int | None, precision: Any
) -> TrainingConfig:
    """As in RegBench: AdamW, a tenth of warm-up from 1e-6, a cosine to a tenth of the learning rate."""
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
