"""Presets of the recall experiments: the task, the models and how they are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swila.experiments.loop import TrainingConfig

# Settings of a preset that ``--set`` can replace, and their types
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
    """Size of an experiment.

    With M memories, SwiLA has one head of J = M mixtures, DeltaNet M heads and DN-MoM M memories. All heads have half
    the model's width, so that every recurrent model has a state of ``M (d/2)²`` scalars.

    Attributes:
        summary: Size and cost in a few words.
        task: Source of the examples.
        memories: Number of memories M; with contexts as many as there are contexts.
        train_examples: Number of training examples.
        test_examples: Number of test examples.
        models: Names of the models.
        hidden_sizes: Widths d.
        layers: Numbers of blocks.
        lrs: Learning rates.
        seeds: Number of seeds.
        training: Everything else about the training.
        router_projection: Projection of SwiLA's priors.
        temporal_bias: Initial bias of the temporal gates; the lower, the longer a context is kept at first.
        noise: Whether the logits of SwiLA's routers and gates get noise in training.
        embed_dropout: Dropout of the embedded tokens.
        init_std: Standard deviation of the initial weights.
        conv_on: Input of the short convolution: ``"qkv"``, or ``"input"`` for the whole input of a sequence layer.
        attention_heads: Number of heads of softmax attention.
    """

    summary: str
    task: Any
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
