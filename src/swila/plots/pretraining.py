"""Training loss and validation perplexity against tokens, a curve for each run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from swila.plots.caption import About, add_caption
from swila.plots.curves import Curve
from swila.plots.labels import End, label_ends
from swila.plots.smoothing import smooth
from swila.plots.style import Look, readable, save, short, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

XLABEL = "training tokens"
SMOOTHED = "a mean over a fiftieth of the logged updates on either side"
_BEGINNING = 0.06  # part of the tokens whose values may be above the axis
_LABEL = 0.175  # height of a label, in inches
_LOG_FROM = 2.0  # ratio of the largest perplexity to the smallest from which the axis is logarithmic


class Series(NamedTuple):
    """A run of pretraining.

    Attributes:
        label: Name in labels.
        look: Colour, marker and line style.
        curve: Values against tokens, all of them finite.
    """

    label: str
    look: Look
    curve: Curve


def loss_figure(runs: Sequence[Series], about: About, path: Path) -> list[Path]:
    """Training loss against tokens: for each run a pale curve of all values and a bold curve of their running mean.

    The beginning may be above the axis. Labels give the last value of the bold curve.

    Args:
        runs: Losses of the runs.
        about: Title, data and training.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
    """
    drawn = [run for run in runs if run.curve]
    with styled():
        figure, axis, gap = _figure(drawn, "training loss")
        bold = [smooth(run.curve) for run in drawn]
        low, high = _range([run.curve for run in drawn], [curve[-1][1] for curve in bold])
        room = 0.04 * (high - low) or 0.05 * max(abs(high), 1)
        axis.set_ylim(low - room, high + room)
        for run, curve in zip(drawn, bold, strict=True):
            colour, line = run.look.colour, run.look.line
            axis.plot(*zip(*run.curve, strict=True), color=colour, linewidth=0.6, alpha=0.3, zorder=2)
            axis.plot(*zip(*curve, strict=True), color=colour, linestyle=line, linewidth=1.8, zorder=3)
        ends = [
            End(*curve[-1], f"{run.label}  {curve[-1][1]:.3f}", run.look.colour)
            for run, curve in zip(drawn, bold, strict=True)
        ]
        label_ends(axis, ends, gap)
        legend = [*_marks(drawn), "pale: logged updates", f"bold: {SMOOTHED}", "numbers: last value of the bold curve"]
        add_caption(figure, about, [*legend, *_cut(drawn, high + room)])
        return save(figure, path)


def perplexity_figure(runs: Sequence[Series], about: About, path: Path) -> list[Path]:
    """Validation perplexity against tokens; labels give the last value.

    The beginning may be above the axis, which is logarithmic if the largest perplexity is twice the smallest.

    Args:
        runs: Perplexities of the runs.
        about: Title, data and training.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
    """
    drawn = [run for run in runs if run.curve]
    with styled():
        figure, axis, gap = _figure(drawn, "validation perplexity")
        low, high = _range([run.curve for run in drawn], [run.curve[-1][1] for run in drawn])
        logarithmic = high >= _LOG_FROM * low
        if logarithmic:
            axis.set_yscale("log")
            room = min((high / low) ** 0.04, 10.0)
            axis.set_ylim(low / room, high * room)
            axis.set_yticks(_log_ticks(low, high))
            axis.set_yticks([], minor=True)
        else:
            room = 0.05 * (high - low) or 0.05 * high
            axis.set_ylim(low - room, high + room)
        axis.yaxis.set_major_formatter(lambda value, _: _tick(value))
        for i, run in enumerate(drawn):
            _draw_evaluations(axis, run, i)
        ends = [End(*run.curve[-1], f"{run.label}  {readable(run.curve[-1][1])}", run.look.colour) for run in drawn]
        label_ends(axis, ends, gap)
        legend = [*_marks(drawn, markers=True), "numbers: last value"]
        if logarithmic:
            legend.append("the vertical axis is logarithmic")
        add_caption(figure, about, [*legend, *_cut(drawn, axis.get_ylim()[1])])
        return save(figure, path)


def _figure(runs: Sequence[Series], ylabel: str) -> tuple[Figure, Axes, float]:
    """A figure that is high enough for a label of each run; its axis, and the gap between labels."""
    from matplotlib.figure import Figure

    height = max(2.6, _LABEL * (len(runs) + 1))
    figure = Figure(figsize=(8.2, height + 0.75), layout="constrained")
    axis = figure.subplots()
    longest = max((run.curve[-1][0] for run in runs), default=1)
    axis.set(xlabel=XLABEL, ylabel=ylabel, xlim=(0, longest))
    axis.xaxis.set_major_formatter(lambda tokens, _: short(tokens))
    axis.grid(axis="y", color="#EEEEEE", zorder=0)
    return figure, axis, _LABEL / height


def _range(curves: Sequence[Curve], ends: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest value after the beginning of training, without the outermost percents of many values.

    Args:
        curves: The curves.
        ends: Values that must be inside.
    """
    if not curves:
        return 1.0, 2.0
    begin = _beginning(curves)
    later = sorted(value for curve in curves for x, value in curve if x >= begin)
    skipped = len(later) // 100
    inside = [*later[skipped : len(later) - skipped], *ends]
    return min(inside), max(inside)


def _beginning(curves: Sequence[Curve]) -> float:
    """Number of tokens at which the beginning of training ends."""
    return _BEGINNING * max((curve[-1][0] for curve in curves), default=0)


def _cut(runs: Sequence[Series], top: float) -> list[str]:
    """A phrase about values of the beginning that are above the axis, if there are any."""
    begin = _beginning([run.curve for run in runs])
    above = any(value > top for run in runs for x, value in run.curve if x < begin)
    return ["the beginning is above the axis"] if above else []


def _draw_evaluations(axis: Any, run: Series, place: int) -> None:
    """Draw a curve with a dozen markers at most, at other evaluations than its neighbours, and one at its end."""
    every = -(-len(run.curve) // 12)
    mark = {"marker": run.look.marker, "markersize": 5.5, "markeredgecolor": "white", "markeredgewidth": 0.6}
    axis.plot(
        *zip(*run.curve, strict=True), color=run.look.colour, linestyle=run.look.line, linewidth=1.6, zorder=3,
        markevery=(place % every, every), **mark,
    )  # fmt: skip
    axis.plot(*run.curve[-1], color=run.look.colour, clip_on=False, zorder=4, **mark)


def _marks(runs: Sequence[Series], markers: bool = False) -> list[str]:
    """Phrases that say what colours, markers and line styles mean."""
    told = ["colours and markers: architectures" if markers else "colours: architectures"]
    if len({str(run.look.line) for run in runs}) > 1:
        told.append("line styles and shades: runs of one architecture")
    return told


def _log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two limits, seven at most."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 4, 6), (1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**power for power in powers for factor in factors]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= 7:
            return inside
    return inside[:: -(-len(inside) // 7)]


def _tick(value: float) -> str:
    return f"{value:.0e}" if value >= 1e6 else f"{value:,.10g}"
