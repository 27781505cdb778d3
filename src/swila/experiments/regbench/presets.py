"""Presets of RegBench: the task, the models, the training sets and the length of training."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swila.tasks import RegBench


@dataclass(frozen=True)
class Preset:
    """Size of the experiment.

    With a model of width d all heads have ``d/4`` dims: SwiLA has 2 heads of 2 mixtures, DeltaNet 4 heads, DN-MoM one
    head in 4 memories of which a token uses 2. So every recurrent model has a state of ``d²/4`` scalars in each layer.

    Attributes:
        summary: Size and cost in a few words.
        task: Source of the examples.
        automata: Sizes of the training sets.
        held_out: Number of validation examples and of test examples.
        hidden_size: Width d.
        layers: Number of blocks.
        lr: Learning rate.
        epochs: Number of epochs over the training set.
        looks: Number of evaluations on the validation set in a run.
        seeds: Number of seeds.
        batch_size: Number of examples in a batch.
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
