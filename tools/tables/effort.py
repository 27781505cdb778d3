"""What was tried for a number: learning rates, seeds and epochs; and whether both sides of a comparison had as much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Effort(NamedTuple):
    """What runs that are over tried.

    Attributes:
        seeds: learning rate -> how many seeds.
        epochs: of the shortest run as it was planned.
    """

    seeds: dict[float, int]
    epochs: float

    @property
    def runs(self) -> int:
        """How many there are."""
        return sum(self.seeds.values())


def is_over(run: dict[str, Any]) -> bool:
    """Whether a run of a record came to an end, with a score."""
    return run.get("best") is not None


def effort(runs: Iterable[dict[str, Any]]) -> Effort:
    """The effort of some runs of a record; of those that are not over, none."""
    over = [run for run in runs if is_over(run)]
    epochs = min((run["planned_steps"] / run["steps_per_epoch"] for run in over), default=0.0)
    return Effort(dict(Counter(run["lr"] for run in over)), epochs)


def as_much(theirs: Effort, ours: Effort) -> bool:
    """Whether one side had all learning rates of the other, with as many seeds of each, and as many epochs."""
    every = all(theirs.seeds.get(rate, 0) >= count for rate, count in ours.seeds.items())
    return every and round(theirs.epochs) >= round(ours.epochs)


def less_tried(name: str, ours: Effort, others: Sequence[Effort], whose: str = "the others") -> list[str]:
    """In words, what ``others`` (called ``whose``) did not have that ``name`` had; nothing if they all had as much."""
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
    """In words, what some efforts lack of the paper's learning rates, seeds of each, and epochs.

    The list is empty if nothing is missing.
    """
    found = {
        f"{len(rates)} learning rates": (len(rates), [sum(rate in each.seeds for rate in rates) for each in efforts]),
        f"{seeds} seeds": (seeds, [min(each.seeds.values(), default=0) for each in efforts]),
        f"{epochs:.0f} epochs": (round(epochs), [round(each.epochs) for each in efforts]),
    }
    return [f"{_span(here)} of the paper's {what}" for what, (there, here) in found.items() if min(here) < there]


def _span(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return f"{found[0]}" if found[0] == found[-1] else f"{found[0]} to {found[-1]}"
