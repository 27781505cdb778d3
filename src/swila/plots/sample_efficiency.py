"""Score against the amount of training data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from swila.plots.style import (
    COLOURS,
    LINES,
    MARKERS,
    caption,
    counts_note,
    finite,
    ink,
    label_ends,
    moved,
    save,
    seeds_note,
    short,
    spread,
    styled,
)

Scores = Mapping[int, Sequence[float]]  # training size -> of the seeds

_GREY = "#888888"


def sample_efficiency(
    curves: Mapping[str, Scores],
    names: Mapping[str, str],
    yardsticks: Mapping[str, float],
    title: str,
    path: Path,
    score: str = "test accuracy",
    better: str = "higher",
    xlabel: str = "training automata",
    notes: Sequence[str] = (),
) -> list[Path]:
    """A line for each model through the mean of its seeds at each training size; bars go from seed to seed.

    Models stand side by side at each size, so that their bars stay apart. Yardsticks are dotted lines; those far from
    the models are named below the figure instead.

    Args:
        curves: model -> training size -> scores of the seeds; those that are not finite are skipped.
        names: model -> how to call it.
        yardsticks: name -> score of something that needs no training.
        title: of the figure.
        path: where to; the suffix is replaced by ``.png`` and ``.svg``.
        score: what is measured.
        better: ``higher`` or ``lower``.
        xlabel: what training sizes count.
        notes: what else to say below: the size of the models, how long they were trained.
    """
    from matplotlib.figure import Figure

    drawn = {model: {n: kept for n in sorted(runs) if (kept := finite(runs[n]))} for model, runs in curves.items()}
    drawn = {model: runs for model, runs in drawn.items() if runs}
    sizes = sorted({n for runs in drawn.values() for n in runs}) or [1]
    values = [value for runs in drawn.values() for scores in runs.values() for value in scores] or [0.0, 1.0]
    low, high, near = _range(values, yardsticks)

    with styled():
        figure = Figure(
            figsize=(5.4 if len(drawn) < 6 or len(sizes) > 1 else 1.1 * len(drawn), 3.4), layout="constrained"
        )
        axis = figure.subplots()
        axis.set(xlabel=xlabel, ylabel=f"{score} ({better} is better)", ylim=(low, high))
        _size_axis(axis, sizes, wide=bool(near))
        axis.grid(axis="y", color="#EEEEEE", zorder=0)
        step = 4.0 if len(sizes) > 1 else 50.0
        shifts = {model: step * (i - (len(drawn) - 1) / 2) for i, model in enumerate(drawn)}
        for model, runs in drawn.items():
            _draw_model(axis, model, runs, shifts[model])
        name_models = _name_ends if len(sizes) > 1 else _name_points
        name_models(axis, drawn, names, shifts)
        _draw_yardsticks(axis, near)
        caption(figure, title, [*notes, *_notes(curves, drawn, yardsticks, near)])
        return save(figure, path)


def _range(values: Sequence[float], yardsticks: Mapping[str, float]) -> tuple[float, float, dict[str, float]]:
    """Limits that fit the models, and the yardsticks near enough to be drawn with them."""
    low, high = min(values), max(values)
    reach = 0.5 * max(high - low, 0.02)
    near = {name: height for name, height in yardsticks.items() if low - reach <= height <= high + reach}
    low, high = min([low, *near.values()]), max([high, *near.values()])
    room = 0.07 * (high - low) + max(0.01 - (high - low) / 2, 0)
    return low - room, high + room, near


def _size_axis(axis: Any, sizes: Sequence[int], wide: bool) -> None:
    """A logarithmic axis with ticks at the sizes, and room for words on the left where asked for."""
    span = math.log(sizes[-1] / sizes[0]) or 1.0
    pad = 0.08 if len(sizes) > 1 else 0.5
    axis.set_xscale("log")
    axis.set_xlim(sizes[0] * math.exp(-(pad + 0.2 * wide) * span), sizes[-1] * math.exp(pad * span))
    axis.set_xticks(sizes, [short(size) for size in sizes])
    axis.set_xticks([], minor=True)


def _draw_model(axis: Any, model: str, runs: Scores, shift: float) -> None:
    colour, place = COLOURS.get(model, "black"), moved(axis, shift)
    for n, scores in runs.items():
        axis.plot([n, n], [min(scores), max(scores)], color=colour, linewidth=1.1, transform=place, zorder=3)
    axis.plot(
        list(runs), [mean(scores) for scores in runs.values()], color=colour, linestyle=LINES.get(model, "-"),
        linewidth=1.8, marker=MARKERS.get(model, "o"), markersize=6, markeredgecolor="white", markeredgewidth=0.6,
        transform=place, zorder=4,
    )  # fmt: skip


def _draw_yardsticks(axis: Any, yardsticks: Mapping[str, float]) -> None:
    low, high = axis.get_ylim()
    for height in yardsticks.values():
        axis.axhline(height, xmin=0.03, color=_GREY, linestyle=(0, (1, 2)), linewidth=1, zorder=1.8)
    labels = [(height, name, ink(_GREY)) for name, height in yardsticks.items()]
    for height, label, colour in spread(labels, gap=0.06 * (high - low)):
        axis.annotate(
            label, (0, height), (4, 0), xycoords=axis.get_yaxis_transform(), textcoords="offset points", va="center",
            fontsize=7.5, color=colour, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, zorder=1.9,
        )  # fmt: skip


def _name_ends(axis: Any, drawn: Mapping[str, Scores], names: Mapping[str, str], shifts: Mapping[str, float]) -> None:
    """Names to the right, with the last score, and its training size where it is not the largest."""
    largest = max(n for runs in drawn.values() for n in runs)
    ends = {}
    for model, runs in drawn.items():
        last = max(runs)
        place = "" if last == largest else f" ({short(last)})"
        ends[model] = (last, mean(runs[last]), f"{names.get(model, model)}  {mean(runs[last]):.3f}{place}")
    label_ends(axis, ends, shifts)


def _name_points(axis: Any, drawn: Mapping[str, Scores], names: Mapping[str, str], shifts: Mapping[str, float]) -> None:
    """Names above the points of the only training size."""
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.15 * (high - low))
    for model, runs in drawn.items():
        ((n, scores),) = runs.items()
        label = f"{names.get(model, model)} {mean(scores):.3f}".replace(" ", "\n")
        axis.annotate(
            label, (n, max(scores)), (0, 6), xycoords=moved(axis, shifts[model]), textcoords="offset points",
            ha="center", va="bottom", color=ink(COLOURS.get(model, "black")), weight="bold", fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip


def _notes(
    curves: Mapping[str, Scores],
    drawn: Mapping[str, Scores],
    yardsticks: Mapping[str, float],
    near: Mapping[str, float],
) -> list[str]:
    notes = seeds_note([scores for runs in curves.values() for scores in runs.values()])
    sizes = sorted({n for runs in drawn.values() for n in runs})
    counts = {f"{n:,}": [len(runs[n]) for runs in drawn.values() if n in runs] for n in sizes}
    notes += filter(None, [counts_note("seed", counts)])
    if far := [f"{name} {height:.3f}" for name, height in yardsticks.items() if name not in near]:
        notes.append("off the scale: " + ", ".join(far))
    return notes
