"""Accuracy against state size, the best run and the mean over learning rates side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swila.plots.caption import About, add_caption
from swila.plots.labels import End, label_ends
from swila.plots.style import DASHED, DEEP, GREY, Look, Looks, Plateau, look_of, name_and_depth, save, styled


class StateSizePoint(NamedTuple):
    """One size of a model.

    Attributes:
        state: Number of scalars in the state.
        scores: Scores of all runs.
        mean: Mean over learning rates.
    """

    state: int
    scores: list[float]
    mean: float


class StateSizeLine(NamedTuple):
    """One model and depth.

    Attributes:
        model: Name of the model.
        layers: Number of layers.
        is_cache: Whether the state is a cache that grows with the sequence; such points are hollow.
        points: Sizes of the model, from small to large.
    """

    model: str
    layers: int
    is_cache: bool
    points: list[StateSizePoint]


def state_size_figure(
    lines: Sequence[StateSizeLine], looks: Looks, plateau: Plateau | None, about: About, path: Path
) -> list[Path]:
    """The paper's figures 2a (left: the best run of all learning rates and seeds) and S2 (right: mean over them).

    Thin bars in the right panel go from the worst run to the best. Lines of models with several layers are dotted.
    Softmax attention is drawn at the size of its cache at the task's length, with hollow points.

    Args:
        lines: Models and their sizes.
        looks: Looks of the models, by name.
        plateau: Score to draw as a dashed line, or None.
        about: Title, task and training.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
    """
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(10.4, 3.3), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        states = sorted({point.state for line in lines for point in line.points}) or [1]
        headings = "best of learning rates and seeds (figure 2a)", "mean over learning rates (figure S2)"
        for axis, heading, of_means in zip(axes, headings, (False, True), strict=True):
            _axis(axis, states, heading, plateau)
            ends = []
            for i, line in enumerate(lines):
                look = look_of(line.model, looks)
                shift = 1 + 0.035 * (i - len(lines) / 2) if of_means else 1.0
                heights = [point.mean if of_means else max(point.scores) for point in line.points]
                if of_means:
                    _draw_bars(axis, line, look, shift)
                _draw_line(axis, line, look, heights, shift)
                label = name_and_depth(line.model, line.layers, looks)
                ends.append(End(line.points[-1].state * shift, heights[-1], label, look.colour))
            label_ends(axis, ends)
        axes[0].set_ylabel("test accuracy")
        add_caption(figure, about, _legend(lines, looks, plateau))
        return save(figure, path)


def _axis(axis: Any, states: Sequence[int], heading: str, plateau: Plateau | None) -> None:
    axis.set_xscale("log", base=2)
    powers = [state.bit_length() - 1 for state in states]
    if any(2**power != state for power, state in zip(powers, states, strict=True)):
        powers = list(range(powers[0], powers[-1] + 2))[:: 1 + (powers[-1] - powers[0]) // 8]
    axis.set_xticks([2**power for power in powers], [f"$2^{{{power}}}$" for power in powers])
    axis.set_xticks([], minor=True)
    axis.set(xlim=(states[0] / 1.5, states[-1] * 1.5), ylim=(0, 1.03), xlabel="state (scalars)", title=heading)
    axis.grid(axis="y", color="#EEEEEE", zorder=0)
    if plateau is not None:
        axis.axhline(plateau.score, color=GREY, linestyle=DASHED, linewidth=1, zorder=1)
        axis.annotate(
            plateau.label, (0, plateau.score), (3, 2), xycoords=axis.get_yaxis_transform(), textcoords="offset points",
            color=GREY, fontsize=7.5,
        )  # fmt: skip


def _draw_line(axis: Any, line: StateSizeLine, look: Look, heights: Sequence[float], shift: float) -> None:
    face = "white" if line.is_cache else look.colour
    axis.plot(
        [point.state * shift for point in line.points], heights, color=look.colour,
        linestyle=look.line if line.layers == 1 else DEEP, linewidth=1.8,
        marker=look.marker, markersize=6, markerfacecolor=face,
        markeredgecolor=look.colour if line.is_cache else "white",
        markeredgewidth=1.2 if line.is_cache else 0.6, zorder=4,
    )  # fmt: skip


def _draw_bars(axis: Any, line: StateSizeLine, look: Look, shift: float) -> None:
    for point in line.points:
        ends = [min(point.scores), max(point.scores)]
        axis.plot([point.state * shift] * 2, ends, color=look.colour, linewidth=0.9)


def _legend(lines: Sequence[StateSizeLine], looks: Looks, plateau: Plateau | None) -> list[str]:
    legend = ["colours and markers: models", "points: the best run (left) and the mean (right) of a model and size"]
    counts = {
        name_and_depth(line.model, line.layers, looks): [len(point.scores) for point in line.points] for line in lines
    }
    every = {count for found in counts.values() for count in found}
    if max(every, default=0) > 1:
        legend.append("bars (right): worst to best run")
    if any(line.is_cache for line in lines):
        legend.append("hollow points: a cache of keys and values, whose size is that at the task's length")
    if plateau is not None:
        legend.append(f"dashed, {plateau.label} = {plateau.score:.2f}: {plateau.meaning}")
    if len(every) == 1:
        count = every.pop()
        legend.append(f"{count} run{'' if count == 1 else 's'} per point")
    elif every:
        told = (f"{name} ({', '.join(map(str, found))})" for name, found in counts.items())
        legend.append(f"runs per point, from small to large states: {', '.join(told)}")
    return legend
