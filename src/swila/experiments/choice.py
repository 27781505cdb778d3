"""Choosing a learning rate by validation loss, for experiments with a validation set."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import fmean
from typing import TypeVar

from swila.experiments.record import BaseRow, Metrics, RunRecord

K = TypeVar("K", bound=Hashable)


class ChosenRow(BaseRow):
    """A row whose learning rate was chosen by validation loss.

    Attributes:
        scores: Test scores of the chosen runs, one for each seed.
        seeds: Seeds of the chosen runs.
        lr: Chosen learning rate.
        validation_loss: Mean validation loss of the chosen runs.
        chosen: Names of the chosen runs.
        test: Mean test metrics of the chosen runs.
        tests: Test metrics of each chosen run.
        best_epochs: Epoch of the chosen weights of each chosen run.
        unfinished: Names of the unfinished runs.
    """

    scores: list[float]
    seeds: list[int]
    lr: float | None
    validation_loss: float | None
    chosen: list[str]
    test: Metrics
    tests: list[Metrics]
    best_epochs: list[float]
    unfinished: list[str]


def grouped(runs: Iterable[RunRecord], key: Callable[[RunRecord], K]) -> dict[K, list[RunRecord]]:
    """Runs by the value of ``key``, in the order in which the values first appear."""
    groups: dict[K, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def choose_by_validation(members: Sequence[RunRecord], name: str) -> ChosenRow:
    """The row of some runs that differ in learning rate and seed alone.

    The row holds the test scores of the learning rate with the lowest mean validation loss. All seeds share one
    learning rate: a seed that tried fewer of them would otherwise count with a worse one. Diverged runs count with
    their best weights. A learning rate with a diverged seed that has no such weights is chosen only if all learning
    rates have one.

    Args:
        members: Runs of one model and size, all with the same number of planned steps.
        name: Name of the row in an error.
    """
    if len(planned := {run.get("planned_steps") for run in members}) > 1:
        raise ValueError(f"runs of {name} must be trained alike to be compared, got {planned} steps")
    by_rate: dict[float, list[RunRecord]] = {}
    for run in sorted(members, key=lambda run: run["seed"]):
        if run.get("best") is not None:
            by_rate.setdefault(run["lr"], []).append(run)
    without = {run["lr"] for run in members if run["status"] == "diverged" and run.get("best") is None}
    chosen = min(by_rate.values(), key=lambda found: (found[0]["lr"] in without, _loss(found)), default=[])
    scores = [score for run in chosen if (score := run["best"]) is not None]
    metrics = chosen[0]["test"] if chosen else {}
    return {
        "model": members[0]["model"],
        "state": members[0]["state"],
        "parameters": members[0]["parameters"],
        "mean": fmean(scores) if scores else None,
        "scores": scores,
        "seeds": [run["seed"] for run in chosen],
        "lr": chosen[0]["lr"] if chosen else None,
        "validation_loss": _loss(chosen) if chosen else None,
        "chosen": [run["name"] for run in chosen],
        "test": {name: fmean(run["test"][name] for run in chosen) for name in metrics},
        "tests": [run["test"] for run in chosen],
        "best_epochs": [round(run["best_step"] / run["steps_per_epoch"], 1) for run in chosen],
        "runs": len(members),
        "unfinished": [run["name"] for run in members if "best" not in run],
        "diverged": [run["name"] for run in members if run["status"] == "diverged"],
    }


def _loss(runs: Sequence[RunRecord]) -> float:
    return fmean(run["validation"]["loss"] for run in runs)
