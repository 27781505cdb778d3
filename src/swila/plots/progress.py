"""A score against the epochs or steps of training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from swila.plots.curves import Curve
from swila.plots.style import COLOURS, LINES, MARKERS, caption, label_ends, save, short, styled


def progress_figure(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]],
    names: Mapping[str, str],
    xlabel: str,
    ylabel: str,
    title: str,
    path: Path,
    notes: Sequence[str] = (),
) -> list[Path]:
    """One panel for each setting, in it a thin curve for each seed of each model and a bold one for their mean.

    The mean is of the seeds that did not diverge, and goes as far as all of these do; its highest value stands beside
    the model's name. A seed that diverged is drawn up to there.

    Args:
        panels: title of a panel -> model -> curves of its seeds; one with values that are not finite has diverged.
        names: model -> how to call it.
        xlabel: what the curves count: epochs, steps.
        ylabel: what is measured.
        title: of the figure.
        path: where to; the suffix is replaced by ``.png`` and ``.svg``.
        notes: what else to say below: the size of the models, how long they were trained.
    """
    from matplotlib.figure import Figure

    kept = {h: {m: each for m, runs in models.items() if (each := _split(runs)).all} for h, models in panels.items()}
    values = [value for models in kept.values() for seeds in models.values() for c in seeds.all for _, value in c]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.05 * (high - low) or 0.05
    with styled():
        figure = Figure(figsize=(0.6 + 4.9 * len(kept), 3.5), layout="constrained")
        axes = figure.subplots(1, len(kept), sharey=True, squeeze=False)[0]
        axes[0].set(ylabel=ylabel, ylim=(low - room, high + room))
        for axis, (heading, models) in zip(axes, kept.items(), strict=True):
            steps = [step for seeds in models.values() for curve in seeds.all for step, _ in curve] or [0]
            axis.set(xlabel=xlabel, title=heading, xlim=(min(steps), max(*steps, min(steps) + 1)))
            axis.xaxis.set_major_formatter(lambda step, _: short(step))
            axis.grid(axis="y", color="#EEEEEE", zorder=0)
            ends = {}
            for i, (model, seeds) in enumerate(models.items()):
                (step, value), best = _draw_model(axis, model, seeds, i)
                several = f" (×{len(seeds.all)})" if len(seeds.all) > 1 else ""
                ends[model] = (step, value, f"{names.get(model, model)}  {best:.3f}{several}")
            label_ends(axis, ends)
        caption(figure, title, [*notes, *_notes([runs for models in panels.values() for runs in models.values()])])
        return save(figure, path)


class _Seeds(NamedTuple):
    """Curves up to where they diverge: all of them, and those that do not."""

    all: list[Curve]
    complete: list[Curve]


def _split(curves: Sequence[Curve]) -> _Seeds:
    cut = [list(takewhile(lambda point: math.isfinite(point[1]), curve)) for curve in curves]
    whole = [part for part, curve in zip(cut, curves, strict=True) if len(part) == len(curve)]
    return _Seeds([curve for curve in cut if curve], [curve for curve in whole if curve])


def _mean(curves: Sequence[Curve]) -> Curve:
    """Over the steps that all curves have."""
    runs = [dict(curve) for curve in curves]
    shared = sorted(set(runs[0]).intersection(*runs)) if runs else []
    return [(step, fmean(run[step] for run in runs)) for step in shared]


def _draw_model(axis: Any, model: str, seeds: _Seeds, place: int) -> tuple[tuple[int, float], float]:
    """Draw the seeds and their mean, with a few marks out of other models' way; returns its end and highest value."""
    colour = COLOURS.get(model, "black")
    if len(seeds.all) > 1:
        for curve in seeds.all:
            axis.plot(*zip(*curve, strict=True), color=colour, linewidth=0.7, alpha=0.5, zorder=2)
    bold = _mean(seeds.complete) or max(seeds.all, key=len)
    mark = {"marker": MARKERS.get(model, "o"), "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 0.6}
    axis.plot(
        *zip(*bold, strict=True), color=colour, linestyle=LINES.get(model, "-"), linewidth=2, zorder=3,
        markevery=sorted({int(len(bold) * (part + 0.04 * (place % 6))) for part in (0.1, 0.35, 0.6)}), **mark,
    )  # fmt: skip
    axis.plot(*bold[-1], color=colour, clip_on=False, zorder=4, **mark)
    return bold[-1], max(value for _, value in bold)


def _notes(models: Sequence[Sequence[Curve]]) -> list[str]:
    notes = []
    if any(len(curves) > 1 for curves in models):
        notes.append("bold: mean of the seeds, as far as all of them go; thin: each seed; numbers: the mean's highest")
    if diverged := sum(not all(math.isfinite(value) for _, value in curve) for curves in models for curve in curves):
        notes.append(f"{diverged} diverged, drawn up to there and not in the mean")
    return notes
