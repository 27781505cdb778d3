"""Score against state size and against the number of parameters, for several configurations of a model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swila.plots.caption import About, add_caption, counts_note, finite, seeds_note
from swila.plots.labels import End, label_ends, label_points, moved
from swila.plots.style import DASHED, Look, Looks, ink, look_of, save, short, styled


class Point(NamedTuple):
    """One configuration of a model.

    Attributes:
        model: Name of the model.
        configuration: ``H2J2`` (heads, mixtures per head), ``H4``, or nothing.
        state: Number of scalars in the recurrent state.
        parameters: Number of parameters.
        scores: Scores of the seeds; those that are not finite are skipped.
        best: Whether the line goes through it. Where no point of a state size is marked, the line goes through the one
            with the best mean.
    """

    model: str
    configuration: str
    state: int
    parameters: int
    scores: Sequence[float]
    best: bool = False


def budget_figure(
    points: Sequence[Point],
    looks: Looks,
    about: About,
    path: Path,
    score: str = "test R²",
    parameters: bool = True,
    reference: str | None = None,
) -> list[Path]:
    """Score against state size and against the number of parameters.

    Each model has a line through the best configuration of each state size. Configurations with mixtures are labelled
    there; the other configurations are small circles with the number of mixtures in them. Bars go from the lowest seed
    to the highest, points are at the mean.

    Args:
        points: Configurations; those without a finite score are left out.
        looks: Looks of the models, by name.
        about: Title, task and training.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
        score: What is measured.
        parameters: Whether to draw the panel of parameters, and the configurations that are not the best.
        reference: Name of a model that is drawn as a dashed line, or None.
    """
    from matplotlib.figure import Figure

    kept = [point._replace(scores=finite(point.scores)) for point in points]
    kept = [point for point in kept if point.scores]
    references = [point for point in kept if point.model == reference]
    compared = [point for point in kept if point.model != reference]
    best = _best(compared)
    chosen = [point for line in best.values() for point in line]
    others = [point for point in compared if point not in chosen] if parameters else []
    shown = [value for point in (*chosen, *others, *references) for value in point.scores] or [0.0, 1.0]
    room = max(max(shown) - min(shown), 0.02)

    with styled():
        figure = Figure(figsize=(9.8, 3.3) if parameters else (5.6, 3.0), layout="constrained")
        widths = [1.3, 1] if parameters else [1]
        axes = figure.subplots(1, len(widths), sharey=True, squeeze=False, width_ratios=widths)[0]
        axes[0].set_ylim(min(shown) - 0.06 * room, max(shown) + 0.12 * room)
        axes[0].set_ylabel(score)
        _state_axis(axes[0], compared)
        if parameters:
            _parameter_axis(axes[1], compared)
            for point, lane in _lanes(others, gap=0.045 * (axes[0].get_ylim()[1] - axes[0].get_ylim()[0])):
                colour = look_of(point.model, looks).colour
                _draw_numbered(axes[0], point, lane, colour)
                dot = {"markeredgecolor": colour, "markeredgewidth": 0.7, "markersize": 3.5}
                axes[1].plot(point.parameters, _mean(point), "o", color="white", zorder=3, **dot)
        for axis, quantity in zip(axes, ("state", "parameters"), strict=False):
            axis.grid(axis="y", color="#EEEEEE", zorder=0)
            for model, line in best.items():
                _draw_line(axis, look_of(model, looks), line, quantity)
            label_ends(axis, [_end(line[-1], quantity, look_of(model, looks)) for model, line in best.items()])
            if references:
                _draw_reference(axis, references, look_of(references[0].model, looks))
        add_caption(figure, about, _legend(points, chosen, others, references))
        figure.draw_without_rendering()  # places are known from here on
        figure.set_layout_engine("none")
        for axis, quantity in zip(axes, ("state", "parameters"), strict=False):
            named = [point for point in chosen if _mixtures(point)]
            label_points(
                axis,
                [(getattr(p, quantity), _mean(p), p.configuration, look_of(p.model, looks).colour) for p in named],
            )
        return save(figure, path)


def _best(points: Sequence[Point]) -> dict[str, list[Point]]:
    """The best configuration of each model and state size, from small to large."""
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
    """Points with their lanes, right or left of their state size; points of a lane are more than ``gap`` apart."""
    last: dict[tuple[int, int], float] = {}
    placed = []
    for point in sorted(points, key=_mean):
        free = [lane for lane in (1, -1, 2, -2) if _mean(point) - last.get((point.state, lane), -math.inf) > gap]
        lane = free[0] if free else 1
        last[point.state, lane] = _mean(point)
        placed.append((point, lane))
    return placed


def _end(point: Point, quantity: str, look: Look) -> End:
    return End(getattr(point, quantity), _mean(point), look.title, look.colour)


def _draw_line(axis: Any, look: Look, line: Sequence[Point], quantity: str) -> None:
    bold = any(_mixtures(point) for point in line)
    xs = [getattr(point, quantity) for point in line]
    for x, point in zip(xs, line, strict=True):
        axis.plot([x, x], [min(point.scores), max(point.scores)], color=look.colour, linewidth=1, zorder=3)
    axis.plot(
        xs, [_mean(point) for point in line], color=look.colour, linestyle=look.line,
        linewidth=2.4 if bold else 1.5, marker=look.marker, markersize=6 if bold else 5,
        markeredgecolor="white", markeredgewidth=0.6, zorder=5 if bold else 4,
    )  # fmt: skip


def _draw_numbered(axis: Any, point: Point, lane: int, colour: str) -> None:
    """A circle with the number of mixtures in it, beside its state size."""
    place = moved(axis, 8.5 * lane)
    x, y = point.state, _mean(point)
    axis.plot([x, x], [min(point.scores), max(point.scores)], color=colour, alpha=0.6, linewidth=0.8, transform=place)
    axis.plot(
        x, y, "o", color="white", markersize=8.5, markeredgecolor=colour, markeredgewidth=0.7, transform=place, zorder=6
    )
    axis.text(
        x, y, _mixtures(point), color=ink(colour), fontsize=6.5, ha="center", va="center_baseline", transform=place,
        zorder=7,
    )  # fmt: skip


def _draw_reference(axis: Any, points: Sequence[Point], look: Look) -> None:
    """A line at the best mean, with the model's name above its left end."""
    height = max(map(_mean, points))
    axis.axhline(height, color=look.colour, linestyle=DASHED, linewidth=1.2, zorder=2)
    axis.annotate(
        f"{look.title}  {height:.3f}", (0, height), (4, 3), xycoords=axis.get_yaxis_transform(),
        textcoords="offset points", color=ink(look.colour), weight="bold", fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
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


def _legend(
    points: Sequence[Point], chosen: Sequence[Point], others: Sequence[Point], references: Sequence[Point]
) -> list[str]:
    legend = ["colours and markers: models", *seeds_note([point.scores for point in points])]
    if any(_mixtures(point) for point in chosen):
        legend.append("labels: heads (H) and mixtures per head (J) of the best configuration at each state size")
    if others:
        legend.append("circles: other configurations, with the number of mixtures (left)")
    if references:
        legend.append("dashed: the model to approximate, trained itself")
    shown = sorted((*chosen, *others), key=lambda point: point.state)
    counts: dict[str, list[int]] = {}
    for point in shown:
        counts.setdefault(f"{point.state:,}", []).append(len(point.scores))
    return [*legend, *filter(None, [counts_note("seed", counts)])]
