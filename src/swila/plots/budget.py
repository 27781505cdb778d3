"""How well models of some state size approximate softmax attention."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swila.plots.style import (
    COLOURS,
    LINES,
    MARKERS,
    caption,
    counts_note,
    finite,
    ink,
    label_points,
    moved,
    save,
    seeds_note,
    short,
    spread,
    styled,
)

_REFERENCE = "attention"


class Point(NamedTuple):
    """One configuration of a model.

    Attributes:
        model: ``swila``, ``deltanet``, ...; ``attention`` is the reference.
        configuration: ``H2J2`` (heads, mixtures per head), ``H4``, or nothing.
        state: scalars of recurrent state.
        parameters: of the model.
        scores: of the seeds; those that are not finite are skipped.
        best: whether the line goes through it; where no point of a state size is marked, the one with the best mean.
    """

    model: str
    configuration: str
    state: int
    parameters: int
    scores: Sequence[float]
    best: bool = False


def budget_figure(
    points: Sequence[Point],
    names: Mapping[str, str],
    title: str,
    path: Path,
    score: str = "test R²",
    parameters: bool = True,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Score against state size, and against the number of parameters, for two or more models.

    Each model has a line through the best configuration of each state size; the names of those with mixtures are
    written beside them, and their other configurations are small circles with the number of mixtures in them. Bars go
    from the worst seed to the best, marks are at the mean. Softmax attention is a dashed line.

    Args:
        points: the configurations; those without a finite score are left out.
        names: model -> how to call it.
        title: of the figure.
        path: where to; the suffix is replaced by ``.png`` and ``.svg``.
        score: what is measured.
        parameters: False: only the panel of state sizes, and in it only the best configurations.
        notes: what else to say below: the size of the task, how long models were trained.
    """
    from matplotlib.figure import Figure

    kept = [point._replace(scores=finite(point.scores)) for point in points]
    kept = [point for point in kept if point.scores]
    references = [point for point in kept if point.model == _REFERENCE]
    baselines = [point for point in kept if point.model != _REFERENCE]
    best = _best(baselines)
    chosen = [point for line in best.values() for point in line]
    others = [point for point in baselines if point not in chosen] if parameters else []
    shown = [value for point in (*chosen, *others, *references) for value in point.scores] or [0.0, 1.0]
    room = max(max(shown) - min(shown), 0.02)

    with styled():
        figure = Figure(figsize=(9.6, 3.7) if parameters else (4.9, 3.3), layout="constrained")
        widths = [1.3, 1] if parameters else [1]
        axes = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
        axes[0].set_ylim(min(shown) - 0.06 * room, max(shown) + 0.12 * room)
        axes[0].set_ylabel(score)
        _state_axis(axes[0], baselines)
        if parameters:
            _parameter_axis(axes[1], baselines)
            for point, lane in _lanes(others, gap=0.045 * (axes[0].get_ylim()[1] - axes[0].get_ylim()[0])):
                _draw_numbered(axes[0], point, lane)
                dot = {"markeredgecolor": COLOURS.get(point.model, "black"), "markeredgewidth": 0.7, "markersize": 3.5}
                axes[1].plot(point.parameters, _mean(point), "o", color="white", zorder=3, **dot)
        for axis, quantity in zip(axes, ("state", "parameters"), strict=False):
            axis.grid(axis="y", color="#EEEEEE", zorder=0)
            for model, line in best.items():
                _draw_line(axis, model, line, quantity)
            _name_lines(axis, best, names)
            if references:
                _draw_reference(axis, references, names)
        caption(figure, title, [*notes, *_notes(points, chosen, others)])
        figure.draw_without_rendering()  # places are known from here on
        figure.set_layout_engine("none")
        for axis, quantity in zip(axes, ("state", "parameters"), strict=False):
            named = [point for point in chosen if _mixtures(point)]
            label_points(
                axis,
                [(getattr(p, quantity), _mean(p), p.configuration, COLOURS.get(p.model, "black")) for p in named],
            )
        return save(figure, path)


def _best(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Of each model the best configuration of each state size, from small to large."""
    best: dict[str, dict[int, Point]] = {}
    for point in points:
        sizes = best.setdefault(point.model, {})
        sizes[point.state] = max(sizes.get(point.state, point), point, key=lambda point: (point.best, _mean(point)))
    return {model: [sizes[state] for state in sorted(sizes)] for model, sizes in best.items()}


def _mean(point: Point) -> float:
    return sum(point.scores) / len(point.scores)


def _mixtures(point: Point) -> str:
    match = re.search(r"J(\d+)", point.configuration)
    return match[1] if match else ""


def _lanes(points: Sequence[Point], gap: float) -> list[tuple[Point, int]]:
    """Points of one state size to the right and to the left of it, in lanes where none is closer than ``gap``."""
    last: dict[tuple[int, int], float] = {}
    placed = []
    for point in sorted(points, key=_mean):
        free = [lane for lane in (1, -1, 2, -2) if _mean(point) - last.get((point.state, lane), -math.inf) > gap]
        lane = free[0] if free else 1
        last[point.state, lane] = _mean(point)
        placed.append((point, lane))
    return placed


def _draw_line(axis: Any, model: str, line: Sequence[Point], quantity: str) -> None:
    colour = COLOURS.get(model, "black")
    bold = any(_mixtures(point) for point in line)
    xs = [getattr(point, quantity) for point in line]
    for x, point in zip(xs, line, strict=True):
        axis.plot([x, x], [min(point.scores), max(point.scores)], color=colour, linewidth=1, zorder=3)
    axis.plot(
        xs, [_mean(point) for point in line], color=colour, linestyle=LINES.get(model, "-"),
        linewidth=2.4 if bold else 1.5, marker=MARKERS.get(model, "o"), markersize=6 if bold else 5,
        markeredgecolor="white", markeredgewidth=0.6, zorder=5 if bold else 4,
    )  # fmt: skip


def _draw_numbered(axis: Any, point: Point, lane: int) -> None:
    """A circle with the number of mixtures in it, beside its state size."""
    colour, place = COLOURS.get(point.model, "black"), moved(axis, 8.5 * lane)
    x, y = point.state, _mean(point)
    axis.plot([x, x], [min(point.scores), max(point.scores)], color=colour, alpha=0.6, linewidth=0.8, transform=place)
    axis.plot(
        x, y, "o", color="white", markersize=8.5, markeredgecolor=colour, markeredgewidth=0.7, transform=place, zorder=6
    )
    axis.text(
        x, y, _mixtures(point), color=ink(colour), fontsize=6.5, ha="center", va="center_baseline", transform=place,
        zorder=7,
    )  # fmt: skip


def _draw_reference(axis: Any, points: Sequence[Point], names: Mapping[str, str]) -> None:
    """A line at the best mean, with its name above the left end."""
    height, colour = max(map(_mean, points)), COLOURS[_REFERENCE]
    axis.axhline(height, color=colour, linestyle=(0, (4, 3)), linewidth=1.2, zorder=2)
    name = f"{names.get(_REFERENCE, _REFERENCE)}  {height:.3f}"
    axis.annotate(
        name, (0, height), (4, 3), xycoords=axis.get_yaxis_transform(), textcoords="offset points",
        color=ink(colour), weight="bold", fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )  # fmt: skip


def _name_lines(axis: Any, best: Mapping[str, Sequence[Point]], names: Mapping[str, str]) -> None:
    """Names to the right of the last points."""
    low, high = axis.get_ylim()
    last = [
        (_mean(line[-1]), names.get(model, model), ink(COLOURS.get(model, "black"))) for model, line in best.items()
    ]
    for height, name, colour in spread(last, gap=0.06 * (high - low)):
        axis.annotate(
            name, (1, height), (4, 0), xycoords=axis.get_yaxis_transform(), textcoords="offset points",
            color=colour, weight="bold", va="center", annotation_clip=False,
        )  # fmt: skip


def _state_axis(axis: Any, points: Sequence[Point]) -> None:
    sizes = sorted({point.state for point in points}) or [1]
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
    axis.set_xticks([], minor=True)
    axis.set(xlim=(sizes[0] / 2**0.65, sizes[-1] * 2**0.65), xlabel="recurrent state (scalars)")


def _parameter_axis(axis: Any, points: Sequence[Point]) -> None:
    counts = [point.parameters for point in points] or [1]
    low, high = min(counts) / 1.3, max(counts) * 1.3
    for digits in ((1, 2, 5), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)):
        ticks = [digit * 10**power for power in range(10) for digit in digits if low <= digit * 10**power <= high]
        if len(ticks) > 2:
            break
    axis.set_xscale("log")
    axis.set_xticks(ticks, [short(tick) for tick in ticks], fontsize=8)
    axis.set_xticks([], minor=True)
    axis.set(xlim=(low, high), xlabel="parameters")


def _notes(points: Sequence[Point], chosen: Sequence[Point], others: Sequence[Point]) -> list[str]:
    notes = []
    if any(_mixtures(point) for point in chosen):
        notes.append("labels: heads (H) and mixtures per head (J) of the best at each state size")
    if others:
        notes.append("circles: the others, numbered by J")
    notes += seeds_note([point.scores for point in points])
    shown = sorted((*chosen, *others), key=lambda point: point.state)
    counts: dict[str, list[int]] = {}
    for point in shown:
        counts.setdefault(f"{point.state:,}", []).append(len(point.scores))
    return [*notes, *filter(None, [counts_note("seed", counts)])]
