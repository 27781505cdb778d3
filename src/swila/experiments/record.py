"""The types of a *record*: everything that came out of an experiment, as ``results.json`` holds it.

Records are JSON objects; the classes here are their types, checked by mypy alone. Tables and figures are made from a
record and nothing else. Every experiment adds the type of its own rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Generic, NotRequired, TypedDict, TypeVar

Environment = dict[str, Any]
Metrics = dict[str, float]
Curve = list[tuple[int, float]]  # (step, score) of every evaluation; lists of two numbers in a file
Row = TypeVar("Row", bound="BaseRow")


class RunFacts(TypedDict):
    """What is known of a run before it is trained.

    Attributes:
        name: Name of the run, also that of its directory.
        model: Name of the model.
        size: Size of the model, as part of the name.
        variant: Differences from the preset.
        state: Number of scalars in the recurrent state.
        parameters: Number of parameters.
        train_examples: Number of training examples.
        steps_per_epoch: Number of training steps in an epoch.
        planned_steps: Number of training steps unless the run stops early.
    """

    name: str
    model: str
    size: str
    variant: NotRequired[str]
    hidden_size: NotRequired[int]
    num_layers: NotRequired[int]
    num_heads: NotRequired[int]
    num_mixtures: NotRequired[int]
    state: int
    parameters: int
    train_examples: int
    steps_per_epoch: float
    lr: float
    seed: int
    planned_steps: int
    precision: str


class RunRecord(RunFacts):
    """A run with what came out of it.

    Attributes:
        status: ``"finished"``, ``"solved"``, ``"stopped"`` or ``"diverged"`` for a finished run, otherwise
            ``"running"``, ``"interrupted"``, ``"waiting"`` or ``"failed"``.
        curve: Score at every evaluation; absent where no table or figure needs it.
        step: Last step of an unfinished run.
        score: Score at the last evaluation of an unfinished run.
        best: Score of a finished run; None if it diverged before there were weights to choose. Unfinished runs do not
            have it.
        best_step: Step of the best evaluation, or of the chosen weights.
        final: Score of the last weights, without a validation set.
        final_validation: Score of the last weights on the validation set.
        test: Metrics of the chosen weights on the test set.
        validation: Metrics of the chosen weights on the validation set.
        steps: Number of steps of a finished run.
        seconds: Training time of a finished run.
    """

    status: str
    error: NotRequired[str]
    curve: NotRequired[Curve]
    step: NotRequired[int]
    score: NotRequired[float | None]
    best: NotRequired[float | None]
    best_step: NotRequired[int]
    final: NotRequired[float]
    final_validation: NotRequired[float]
    test: NotRequired[Metrics]
    validation: NotRequired[Metrics]
    steps: NotRequired[int]
    device: NotRequired[str]
    seconds: NotRequired[float]


class BaseRow(TypedDict):
    """The part of a row that all experiments share: what several runs of one model come to.

    Attributes:
        model: Name of the model.
        state: Number of scalars in the recurrent state.
        parameters: Number of parameters.
        mean: Mean score, None if no run is finished.
        runs: Number of runs.
        diverged: Names of the runs that diverged.
    """

    model: str
    state: int
    parameters: int
    mean: float | None
    runs: int
    diverged: list[str]


class References(TypedDict, total=False):
    """Scores to compare with that need no training.

    Attributes:
        plateau: Score of a model that solves only a part of the task.
        yardsticks: Metrics of simple predictors, by name.
    """

    plateau: float
    yardsticks: dict[str, Metrics]


class Record(References, Generic[Row]):
    """Everything that came out of an experiment.

    Attributes:
        experiment: Name of the experiment.
        preset: Name of the preset.
        environment: Hardware, versions and commit of the first run.
        other_environments: Those of the other runs, where they differ.
        device: Device of the runs.
        task: Fields of the task.
        rows: Summary of the runs.
        runs: Runs by name.
    """

    experiment: str
    preset: str
    environment: Environment
    other_environments: NotRequired[list[Environment]]
    device: str
    task: dict[str, Any]
    rows: list[Row]
    runs: dict[str, RunRecord]


def is_finished(run: RunRecord) -> bool:
    """Whether a run is finished and has a score."""
    return run.get("best") is not None


def lengths(runs: Iterable[RunRecord], what: str) -> list[str]:
    """The number of training examples, if it is the same for all runs, and the number of epochs, in words.

    Args:
        runs: Runs of a record.
        what: Word for the examples.
    """
    shown = [run for run in runs if "planned_steps" in run]  # results of an earlier version may not say
    epochs = sorted({run["planned_steps"] / run["steps_per_epoch"] for run in shown})
    counts = {run["train_examples"] for run in shown}
    told = [f"{counts.pop():,} training {what}"] if len(counts) == 1 else []
    if epochs:
        low, high = f"{epochs[0]:.3g}", f"{epochs[-1]:.3g}"
        span = low if low == high else f"{low} to {high}"
        told.append(f"{span} epoch{'' if span == '1' else 's'}")
    return told


def trials(runs: Iterable[RunRecord]) -> list[str]:
    """The learning rates of some runs and the number of seeds, in words."""
    tried = list(runs)
    rates = sorted({run["lr"] for run in tried})
    if not rates:
        return []
    seeds = Counter((run["model"], run.get("size"), run.get("variant"), run["lr"]) for run in tried).values()
    most = max(seeds)
    return [
        f"learning rate{'' if len(rates) == 1 else 's'} {', '.join(f'{rate:g}' for rate in rates)}",
        f"{'' if most == min(seeds) else 'up to '}{most} seed{'' if most == 1 else 's'}",
    ]
