"""Learning rates, seeds and epochs behind a number, and whether both sides of a comparison had the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Effort(NamedTuple):
    """Learning rates, seeds and epochs of finished runs.

    Attributes:
        seeds: Learning rate -> number of seeds.
        epochs: Planned epochs of the shortest run.
    """

    seeds: dict[float, int]
    epochs: float

    @property
    def runs(self) -> int:
        """Number of runs."""
        return sum(self.seeds.values())


def is_over(run: dict[str, Any]) -> bool:
    """Whether a run of a record finished with a score."""
    return run.get("best") is not None


def effort(runs: Iterable[dict[str, Any]]) -> Effort:
    """Return the effort of some runs of a record, of which only the finished ones count."""
    over = [run for run in runs if is_over(run)]
    epochs = min((run["planned_steps"] / run["steps_per_epoch"] for run in over), default=0.0)
    return Effort(dict(Counter(run["lr"] for run in over)), epochs)


def as_much(theirs: Effort, ours: Effort) -> bool:
    """Whether ``theirs`` has all learning rates of ``ours``, with as many seeds each, and as many epochs."""
    every = all(theirs.seeds.get(rate, 0) >= count for rate, count in ours.seeds.items())
    return every and round(theirs.epochs) >= round(ours.epochs)


def less_tried(name: str, ours: Effort, others: Sequence[Effort], whose: str = "the others") -> list[str]:
    """Say where ``others`` (called ``whose``) had less effort than ``name``; an empty list if nowhere."""
    told = []
    if any(each.seeds.get(rate, 0) < count for each in others for rate, count in ours.seeds.items()):
        theirs = f"{_span(each.runs for each in others)} of {_span(len(each.seeds) for each in others)} for {whose}"
        plural = "s" if len(ours.seeds) > 1 else ""
        told.append(f"{ours.runs} runs of {len(ours.seeds)} learning rate{plural} for {name} and {theirs}")
    if any(round(each.epochs) < round(ours.epochs) for each in others):
        epochs = _span(round(each.epochs) for each in others)
        told.append(f"{ours.epochs:.0f} epochs for {name} and {epochs} for {whose}")
    return told


def below(efforts: Sequence[Effort], rates: Sequence[float], seeds: int, epochs: float) -> list[str]:
    """Say what some efforts lack of the paper's learning rates, seeds and epochs; an empty list if nothing."""
    found = {
        f"{len(rates)} learning rates": (len(rates), [sum(rate in each.seeds for rate in rates) for each in efforts]),
        f"{seeds} seeds": (seeds, [min(each.seeds.values(), default=0) for each in efforts]),
        f"{epochs:.0f} epochs": (round(epochs), [round(each.epochs) for each in efforts]),
    }
    return [f"{_span(here)} of the paper's {what}" for what, (there, here) in found.items() if min(here) < there]


def _span(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return f"{found[0]}" if found[0] == found[-1] else f"{found[0]} to {found[-1]}"
