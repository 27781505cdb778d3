"""A score against the epochs or steps of training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from swila.plots.caption import About, add_caption
from swila.plots.curves import Curve
from swila.plots.labels import End, label_ends
from swila.plots.style import Look, Looks, look_of, save, short, styled


def progress_figure(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]],
    looks: Looks,
    xlabel: str,
    ylabel: str,
    about: About,
    path: Path,
) -> list[Path]:
    """A panel for each setting with a thin curve for each seed of each model and a bold curve for their mean.

    The mean is over the seeds that did not diverge, up to the shortest of them; the label gives its highest value. The
    curve of a diverged seed ends where it diverged.

    Args:
        panels: Curves of the seeds of each model, by the title of the panel and the name of the model. A curve with
            values that are not finite has diverged.
        looks: Looks of the models, by name.
        xlabel: Label of the horizontal axes.
        ylabel: Label of the vertical axes.
        about: Title, task and training.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
    """
    from matplotlib.figure import Figure

    kept = {h: {m: each for m, runs in models.items() if (each := _split(runs)).all} for h, models in panels.items()}
    values = [value for models in kept.values() for seeds in models.values() for c in seeds.all for _, value in c]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.05 * (high - low) or 0.05
    with styled():
        across = min(max(len(kept), 1), 2)
        down = max(-(-len(kept) // across), 1)
        figure = Figure(figsize=(1.6 + 4.4 * across, 0.3 + 2.9 * down), layout="constrained")
        axes = figure.subplots(down, across, sharey=True, squeeze=False).flat
        axes[0].set(ylim=(low - room, high + room))
        for axis in axes[len(kept) :]:
            axis.set_axis_off()
        for axis in axes[: len(kept) : across]:
            axis.set_ylabel(ylabel)
        for axis, (heading, models) in zip(axes, kept.items(), strict=False):
            steps = [step for seeds in models.values() for curve in seeds.all for step, _ in curve] or [0]
            axis.set(xlabel=xlabel, title=heading, xlim=(min(steps), max(*steps, min(steps) + 1)))
            axis.xaxis.set_major_formatter(lambda step, _: short(step))
            axis.grid(axis="y", color="#EEEEEE", zorder=0)
            ends = []
            for i, (model, seeds) in enumerate(models.items()):
                look = look_of(model, looks)
                (step, value), best = _draw_model(axis, look, seeds, i)
                several = f" (×{len(seeds.all)})" if len(seeds.all) > 1 else ""
                ends.append(End(step, value, f"{look.title}  {best:.3f}{several}", look.colour))
            label_ends(axis, ends)
        add_caption(figure, about, _legend([runs for models in panels.values() for runs in models.values()]))
        return save(figure, path)


class _Seeds(NamedTuple):
    """Curves up to where they diverge: all of them, and those that do not diverge."""

    all: list[Curve]
    complete: list[Curve]


def _split(curves: Sequence[Curve]) -> _Seeds:
    cut = [list(takewhile(lambda point: math.isfinite(point[1]), curve)) for curve in curves]
    whole = [part for part, curve in zip(cut, curves, strict=True) if len(part) == len(curve)]
    return _Seeds([curve for curve in cut if curve], [curve for curve in whole if curve])


def _mean(curves: Sequence[Curve]) -> Curve:
    """The mean over the steps that all curves have."""
    runs = [dict(curve) for curve in curves]
    shared = sorted(set(runs[0]).intersection(*runs)) if runs else []
    return [(step, fmean(run[step] for run in runs)) for step in shared]


def _draw_model(axis: Any, look: Look, seeds: _Seeds, place: int) -> tuple[tuple[float, float], float]:
    """Draw the seeds and their mean, with markers at other places than other models; returns its end and maximum."""
    if len(seeds.all) > 1:
        for curve in seeds.all:
            axis.plot(*zip(*curve, strict=True), color=look.colour, linewidth=0.7, alpha=0.5, zorder=2)
    bold = _mean(seeds.complete) or max(seeds.all, key=len)
    mark = {"marker": look.marker, "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 0.6}
    axis.plot(
        *zip(*bold, strict=True), color=look.colour, linestyle=look.line, linewidth=2, zorder=3,
        markevery=sorted({int(len(bold) * (part + 0.04 * (place % 6))) for part in (0.1, 0.35, 0.6)}), **mark,
    )  # fmt: skip
    axis.plot(*bold[-1], color=look.colour, clip_on=False, zorder=4, **mark)
    return bold[-1], max(value for _, value in bold)


def _legend(models: Sequence[Sequence[Curve]]) -> list[str]:
    legend = ["colours and markers: models"]
    if any(len(curves) > 1 for curves in models):
        legend += [
            "bold: mean over seeds, up to the shortest of them",
            "thin: single seeds",
            "numbers: maximum of the bold curve (× number of seeds)",
        ]
    else:
        legend.append("numbers: maximum of the curve")
    if diverged := sum(not all(math.isfinite(value) for _, value in curve) for curves in models for curve in curves):
        legend.append(f"{diverged} diverged; they are drawn up to there and not in the mean")
    return legend
