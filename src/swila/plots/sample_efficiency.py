"""Score against the amount of training data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from swila.plots.caption import About, add_caption, counts_note, diverged_note, finite, seeds_note
from swila.plots.labels import End, label_ends, moved, spread
from swila.plots.style import GREY, Looks, ink, look_of, save, short, styled

Scores = Mapping[int, Sequence[float]]  # training size -> scores of the seeds


def sample_efficiency(
    curves: Mapping[str, Scores],
    looks: Looks,
    yardsticks: Mapping[str, float],
    about: About,
    path: Path,
    score: str = "test accuracy",
    better: str = "higher",
    xlabel: str = "training automata",
) -> list[Path]:
    """A line for each model through the mean over its seeds at each training size.

    Bars go from the lowest seed to the highest. The models are placed side by side at each size, so that their bars do
    not overlap. With a single training size the models are categories, with a dot for each seed and a line at the mean.
    Yardsticks are dotted lines; those far from the models are named in the caption instead.

    Args:
        curves: Scores of the seeds by model and training size; scores that are not finite are skipped.
        looks: Looks of the models, by name.
        yardsticks: Scores of predictors that need no training, by name.
        about: Title, task and training.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
        score: What is measured.
        better: ``higher`` or ``lower``.
        xlabel: What the training sizes count.
    """
    from matplotlib.figure import Figure

    drawn = {model: {n: kept for n in sorted(runs) if (kept := finite(runs[n]))} for model, runs in curves.items()}
    drawn = {model: runs for model, runs in drawn.items() if runs}
    sizes = sorted({n for runs in drawn.values() for n in runs}) or [1]
    values = [value for runs in drawn.values() for scores in runs.values() for value in scores] or [0.0, 1.0]
    low, high, near = _range(values, yardsticks)
    with styled():
        several = len(sizes) > 1
        figure = Figure(figsize=(6.4 if several else max(5.4, 1.0 + 1.05 * len(drawn)), 3.1), layout="constrained")
        axis = figure.subplots()
        axis.set(ylabel=f"{score} ({better} is better)", ylim=(low, high))
        axis.grid(axis="y", color="#EEEEEE", zorder=0)
        if several:
            _draw_lines(axis, drawn, sizes, looks, wide=bool(near))
            axis.set_xlabel(xlabel)
        else:
            _draw_categories(axis, {model: runs[sizes[0]] for model, runs in drawn.items()}, looks, wide=bool(near))
            axis.set_xlabel(f"models, each with {sizes[0]:,} {xlabel}")
        _draw_yardsticks(axis, near)
        add_caption(figure, about, _legend(curves, drawn, yardsticks, near))
        return save(figure, path)


def _range(values: Sequence[float], yardsticks: Mapping[str, float]) -> tuple[float, float, dict[str, float]]:
    """Limits that fit the models, and the yardsticks that are near enough to be drawn with them."""
    low, high = min(values), max(values)
    reach = 0.5 * max(high - low, 0.02)
    near = {name: height for name, height in yardsticks.items() if low - reach <= height <= high + reach}
    low, high = min([low, *near.values()]), max([high, *near.values()])
    room = 0.07 * (high - low) + max(0.01 - (high - low) / 2, 0)
    return low - room, high + room, near


def _draw_lines(axis: Any, drawn: Mapping[str, Scores], sizes: Sequence[int], looks: Looks, wide: bool) -> None:
    """Lines over a logarithmic axis with ticks at the sizes, and room for labels on the left if ``wide``."""
    span = math.log(sizes[-1] / sizes[0])
    axis.set_xscale("log")
    axis.set_xlim(sizes[0] * math.exp(-(0.08 + 0.2 * wide) * span), sizes[-1] * math.exp(0.08 * span))
    axis.set_xticks(sizes, [short(size) for size in sizes])
    axis.set_xticks([], minor=True)
    ends = []
    for i, (model, runs) in enumerate(drawn.items()):
        shift = 4.0 * (i - (len(drawn) - 1) / 2)
        _draw_line(axis, model, runs, looks, shift)
        last, look = max(runs), look_of(model, looks)
        place = "" if last == sizes[-1] else f" ({short(last)})"
        ends.append(End(last, mean(runs[last]), f"{look.title}  {mean(runs[last]):.3f}{place}", look.colour, shift))
    label_ends(axis, ends)


def _draw_line(axis: Any, model: str, runs: Scores, looks: Looks, shift: float) -> None:
    look, place = look_of(model, looks), moved(axis, shift)
    for n, scores in runs.items():
        axis.plot([n, n], [min(scores), max(scores)], color=look.colour, linewidth=1.1, transform=place, zorder=3)
    axis.plot(
        list(runs), [mean(scores) for scores in runs.values()], color=look.colour, linestyle=look.line,
        linewidth=1.8, marker=look.marker, markersize=6, markeredgecolor="white", markeredgewidth=0.6,
        transform=place, zorder=4,
    )  # fmt: skip


def _draw_categories(axis: Any, drawn: Mapping[str, Sequence[float]], looks: Looks, wide: bool) -> None:
    """A category for each model: a dot for each seed, a short line at the mean, and the mean as a number."""
    axis.set_xlim(-0.6 - 0.7 * wide, max(len(drawn), 1) - 0.4)
    axis.set_xticks(range(len(drawn)), [look_of(model, looks).title.replace(" ", "\n") for model in drawn])
    axis.tick_params(axis="x", length=0)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.08 * (high - low))
    for place, (model, scores) in enumerate(drawn.items()):
        look, height = look_of(model, looks), mean(scores)
        offsets = [0.12 * (i - (len(scores) - 1) / 2) for i in range(len(scores))]
        axis.plot([place - 0.3, place + 0.3], [height, height], color=look.colour, linewidth=2.2, zorder=3)
        axis.plot(
            [place + offset for offset in offsets], scores, color=look.colour, linestyle="none", marker=look.marker,
            markersize=6, markeredgecolor="white", markeredgewidth=0.6, zorder=4,
        )  # fmt: skip
        axis.annotate(
            f"{height:.3f}", (place, max(scores)), (0, 6), textcoords="offset points", ha="center", va="bottom",
            color=ink(look.colour), weight="bold", fontsize=8, zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip


def _draw_yardsticks(axis: Any, yardsticks: Mapping[str, float]) -> None:
    low, high = axis.get_ylim()
    for height in yardsticks.values():
        axis.axhline(height, xmin=0.03, color=GREY, linestyle=(0, (1, 2)), linewidth=1, zorder=1.8)
    places = spread(list(yardsticks.values()), gap=0.06 * (high - low))
    for name, height in zip(yardsticks, places, strict=True):
        axis.annotate(
            name, (0, height), (4, 0), xycoords=axis.get_yaxis_transform(), textcoords="offset points", va="center",
            fontsize=7.5, color=ink(GREY), bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, zorder=1.9,
        )  # fmt: skip


def _legend(
    curves: Mapping[str, Scores],
    drawn: Mapping[str, Scores],
    yardsticks: Mapping[str, float],
    near: Mapping[str, float],
) -> list[str]:
    every = [scores for runs in curves.values() for scores in runs.values()]
    sizes = sorted({n for runs in drawn.values() for n in runs})
    counts = {f"{n:,}": [len(runs[n]) for runs in drawn.values() if n in runs] for n in sizes}
    if len(sizes) > 1:
        legend = ["colours and markers: models", *seeds_note(every), *filter(None, [counts_note("seed", counts)])]
        legend.append("numbers: last mean")
    else:
        legend = ["points: seeds", "lines and numbers: mean over the seeds of a model", *diverged_note(every)]
    if near:
        legend.append("dotted: predictors that are not trained")
    if far := [f"{name} {height:.3f}" for name, height in yardsticks.items() if name not in near]:
        legend.append("off the scale: " + ", ".join(far))
    return legend
