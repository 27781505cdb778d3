"""Accuracy against state size, the best run and the mean over learning rates side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swila.plots.style import COLOURS, DEEP, LINES, MARKERS, caption, label_ends, name_and_depth, save, styled

_GREY = "#777777"


class StateSizePoint(NamedTuple):
    """One size of a model.

    Attributes:
        state: in scalars.
        scores: of all runs.
        mean: of learning rates.
    """

    state: int
    scores: list[float]
    mean: float


class StateSizeLine(NamedTuple):
    """One model of some depth.

    Attributes:
        model: ``temporal-swila``, ``deltanet``, ...
        layers: its depth.
        is_cache: whether its state is a cache that grows with the sequence; such points are hollow.
        points: its sizes, from small to large.
    """

    model: str
    layers: int
    is_cache: bool
    points: list[StateSizePoint]


def state_size_figure(
    lines: Sequence[StateSizeLine],
    names: Mapping[str, str],
    plateau: float | None,
    title: str,
    path: Path,
    notes: Sequence[str] = (),
) -> list[Path]:
    """The paper's figures 2a (left: the best run of all learning rates and seeds) and S2 (right: mean over them).

    Thin bars in the right panel go from the worst run to the best. A model with several layers has a dotted line.
    Softmax attention is drawn at the size of its cache at the task's length, with hollow marks.

    Args:
        lines: the models.
        names: model -> how to call it.
        plateau: accuracy of one who recalls values but not the context, or None.
        title: of the figure.
        path: where to; the suffix is replaced by ``.png`` and ``.svg``.
        notes: what else to say below: the size of the task, how long models were trained, what was tried.
    """
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(11.4, 3.9), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        states = sorted({point.state for line in lines for point in line.points}) or [1]
        headings = "best of learning rates and seeds (figure 2a)", "mean of learning rates (figure S2)"
        for axis, heading, of_means in zip(axes, headings, (False, True), strict=True):
            _axis(axis, states, heading, plateau)
            ends, colours = {}, {}
            for i, line in enumerate(lines):
                shift = 1 + 0.035 * (i - len(lines) / 2) if of_means else 1.0
                heights = [point.mean if of_means else max(point.scores) for point in line.points]
                if of_means:
                    _draw_bars(axis, line, shift)
                _draw_line(axis, line, heights, shift)
                label = name_and_depth(line.model, line.layers, names)
                ends[label] = line.points[-1].state * shift, heights[-1], label
                colours[label] = COLOURS.get(line.model, "black")
            label_ends(axis, ends, colours=colours)
        axes[0].set_ylabel("test accuracy")
        caption(figure, title, [*notes, *_notes(lines, names, plateau)])
        return save(figure, path)


def _axis(axis: Any, states: Sequence[int], heading: str, plateau: float | None) -> None:
    axis.set_xscale("log", base=2)
    powers = [state.bit_length() - 1 for state in states]
    if any(2**power != state for power, state in zip(powers, states, strict=True)):
        powers = list(range(powers[0], powers[-1] + 2))[:: 1 + (powers[-1] - powers[0]) // 8]
    axis.set_xticks([2**power for power in powers], [f"$2^{{{power}}}$" for power in powers])
    axis.set_xticks([], minor=True)
    axis.set(xlim=(states[0] / 1.5, states[-1] * 1.5), ylim=(0, 1.03), xlabel="state (scalars)", title=heading)
    axis.grid(axis="y", color="#EEEEEE", zorder=0)
    if plateau is not None:
        axis.axhline(plateau, color=_GREY, linestyle=(0, (4, 3)), linewidth=1, zorder=1)
        axis.annotate(
            "1/C", (0, plateau), (3, 2), xycoords=axis.get_yaxis_transform(), textcoords="offset points",
            color=_GREY, fontsize=7.5,
        )  # fmt: skip


def _draw_line(axis: Any, line: StateSizeLine, heights: Sequence[float], shift: float) -> None:
    colour = COLOURS.get(line.model, "black")
    face = "white" if line.is_cache else colour
    axis.plot(
        [point.state * shift for point in line.points], heights, color=colour,
        linestyle=LINES.get(line.model, "-") if line.layers == 1 else DEEP, linewidth=1.8,
        marker=MARKERS.get(line.model, "o"), markersize=6, markerfacecolor=face,
        markeredgecolor=colour if line.is_cache else "white", markeredgewidth=1.2 if line.is_cache else 0.6, zorder=4,
    )  # fmt: skip


def _draw_bars(axis: Any, line: StateSizeLine, shift: float) -> None:
    for point in line.points:
        ends = [min(point.scores), max(point.scores)]
        axis.plot([point.state * shift] * 2, ends, color=COLOURS.get(line.model, "black"), linewidth=0.9)


def _notes(lines: Sequence[StateSizeLine], names: Mapping[str, str], plateau: float | None) -> list[str]:
    notes = [] if plateau is None else [f"1/C = {plateau:.2f}: knowing the values, but not the context"]
    if any(line.is_cache for line in lines):
        notes.append("hollow marks: a cache of keys and values, whose size is that at the task's length")
    counts = {
        name_and_depth(line.model, line.layers, names): [len(point.scores) for point in line.points] for line in lines
    }
    every = {count for found in counts.values() for count in found}
    if len(every) == 1:
        count = every.pop()
        notes.append(f"{count} run{'' if count == 1 else 's'} a point")
    elif every:
        told = (f"{name} ({', '.join(map(str, found))})" for name, found in counts.items())
        notes.append(f"runs a point, from small to large: {', '.join(told)}")
    if any(count > 1 for found in counts.values() for count in found):
        notes.append("right: bars from the worst run to the best")
    return notes
