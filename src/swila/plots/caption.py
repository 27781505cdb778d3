"""The caption below a figure: the task, the training, and what its marks mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINE = 0.145  # height of a line of the caption, in inches


class About(NamedTuple):
    """What a figure shows, in phrases.

    Attributes:
        title: Title of the figure.
        task: Size of the task.
        training: Training budget: examples, epochs, learning rates, seeds.
    """

    title: str
    task: Sequence[str] = ()
    training: Sequence[str] = ()


def add_caption(figure: Figure, about: About, legend: Sequence[str]) -> None:
    """Write the title above a figure and the caption below it. The figure grows by the height of the caption.

    Args:
        figure: A figure with constrained layout.
        about: What the figure shows.
        legend: Meaning of points, bars, lines and colours, in phrases.
    """
    figure.suptitle(about.title, x=0.01, ha="left", fontsize=11, weight="bold")
    parts = {"Task": about.task, "Training": about.training, "Legend": legend}
    text = "\n".join(_part(name, phrases, figure.get_figwidth()) for name, phrases in parts.items() if phrases)
    figure.set_figheight(figure.get_figheight() + _LINE * (text.count("\n") + 1))
    figure.supxlabel(text, x=0.01, ha="left", fontsize=7.5, color="#555555", linespacing=1.25)


def _part(name: str, phrases: Sequence[str], width: float) -> str:
    return fill(f"{name}: {'; '.join(phrases)}.", width=int(17 * width), break_on_hyphens=False)


def finite(scores: Sequence[float]) -> list[float]:
    """The scores that are finite; those of diverged runs are not."""
    return [score for score in scores if math.isfinite(score)]


def seeds_note(runs: Sequence[Sequence[float]]) -> list[str]:
    """Phrases about points that stand for several seeds.

    Args:
        runs: Scores of the seeds behind each point.
    """
    several = any(len(finite(scores)) > 1 for scores in runs)
    notes = ["points: mean over seeds", "bars: lowest to highest seed"] if several else ["points: one seed"]
    return [*notes, *diverged_note(runs)]


def diverged_note(runs: Sequence[Sequence[float]]) -> list[str]:
    """A phrase about scores that are not finite, if there are any."""
    diverged = sum(len(scores) - len(finite(scores)) for scores in runs)
    return [f"{diverged} diverged {'run is' if diverged == 1 else 'runs are'} left out"] if diverged else []


def counts_note(what: str, counts: Mapping[str, Sequence[int]]) -> str:
    """The number of scores behind the points: ``3 seeds per point``, or for each place where the numbers differ.

    Args:
        what: The word for a score in the singular, ``seed`` or ``run``.
        counts: For each place in the figure the number of scores of each of its points. Neighbours with equal numbers
            are combined.
    """
    spans = {place: (min(found), max(found)) for place, found in counts.items() if found}
    if not spans:
        return ""
    if len(set(spans.values())) == 1:
        low, high = next(iter(spans.values()))
        return f"{_span(low, high)} {what}{'' if high == 1 else 's'} per point"
    grouped: list[tuple[list[str], tuple[int, int]]] = []
    for place, span in spans.items():
        if grouped and grouped[-1][1] == span:
            grouped[-1][0].append(place)
        else:
            grouped.append(([place], span))
    told = [f"{_span(*span)} at {places[0]}{f' to {places[-1]}' if places[1:] else ''}" for places, span in grouped]
    return f"{what}s per point: {', '.join(told)}"


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"
