"""Accuracy against training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from swila.plots.style import COLOURS, DEEP, caption, name_and_depth, save, spread, styled

_ACROSS = 3  # panels of a row

Curve = Sequence[tuple[int, float]]  # (step, accuracy)


class Learning(NamedTuple):
    """How the runs of one model of some depth learn.

    Attributes:
        model: ``temporal-swila``, ``deltanet``, ...
        layers: its depth.
        curves: of its runs.
    """

    model: str
    layers: int
    curves: Sequence[Curve]


def accuracy_curves(
    panels: Mapping[str, Sequence[Learning]],
    names: Mapping[str, str],
    plateau: float | None,
    title: str,
    path: Path,
    notes: Sequence[str] = (),
) -> list[Path]:
    """One panel for each width, in it a curve for every run: the best run of a model bold, the others thin.

    All panels have the same axes. A model with several layers has dotted curves.

    Args:
        panels: title of a panel -> its models.
        names: model -> how to call it.
        plateau: accuracy of a model that recalls values but not the context, or None.
        title: of the figure.
        path: where to; the suffix is replaced by ``.png`` and ``.svg``.
        notes: what else to say below: how long models were trained, what was tried.
    """
    from matplotlib.figure import Figure

    with styled():
        across = 2 if len(panels) == 4 else min(max(len(panels), 1), _ACROSS)
        down = max(-(-len(panels) // across), 1)
        figure = Figure(figsize=(1.2 + 4.6 * across, 0.4 + 3.0 * down), layout="constrained")
        axes = figure.subplots(down, across, sharey=True, squeeze=False).flat
        every = [curve for models in panels.values() for model in models for curve in model.curves if curve]
        longest = max((curve[-1][0] for curve in every), default=1)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for axis, (heading, models) in zip(axes, panels.items(), strict=False):
            ends: list[tuple[float, str, str]] = []
            if plateau is not None:
                axis.axhline(plateau, color="#888888", linestyle=(0, (4, 3)), linewidth=1, zorder=1)
                ends.append((plateau, f"values without context: 1/C = {plateau:.2f}", "#777777"))
            for model, layers, curves in models:
                drawn = sorted((c for c in curves if c), key=lambda c: max(accuracy for _, accuracy in c))
                for i, curve in enumerate(drawn):
                    steps, accuracy = zip((0, 0.0), *curve, strict=True)
                    best = i == len(drawn) - 1
                    colour = COLOURS.get(model, "black")
                    axis.plot(
                        steps, accuracy, color=colour, linewidth=2.2 if best else 0.8, alpha=1 if best else 0.5,
                        linestyle="-" if layers == 1 else DEEP, solid_capstyle="round", zorder=3 if best else 2,
                    )  # fmt: skip
                    if best:
                        several = f" (×{len(drawn)})" if len(drawn) > 1 else ""
                        label = f"{name_and_depth(model, layers, names)}  {max(accuracy):.2f}{several}"
                        ends.append((accuracy[-1], label, colour))
                        axis.plot(steps[-1], accuracy[-1], "o", color=colour, markersize=4, zorder=4)
            for height, label, colour in spread(ends, gap=0.065):
                weight = "normal" if colour == "#777777" else "bold"
                axis.text(1.02 * longest, height, label, color=colour, va="center", weight=weight)
            axis.set(xlim=(0, longest), ylim=(0, 1.02), xlabel="training steps", title=heading)
            axis.grid(axis="y", color="#EEEEEE", zorder=0)
        for axis in axes[: len(panels) : across]:
            axis.set_ylabel("test accuracy")
        marks = "bold: the best run of each model, up to where it ended; thin: other seeds and learning rates"
        caption(figure, title, [*notes, marks, "×: runs"])
        return save(figure, path)
