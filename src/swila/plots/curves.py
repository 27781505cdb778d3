"""Accuracy against training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swila.plots.caption import About, add_caption
from swila.plots.labels import End, label_ends
from swila.plots.style import DASHED, DEEP, GREY, Looks, Plateau, look_of, name_and_depth, save, styled

Curve = Sequence[tuple[float, float]]  # (step or epoch, score)


class Learning(NamedTuple):
    """The learning curves of one model and depth.

    Attributes:
        model: Name of the model.
        layers: Number of layers.
        curves: Curves of its runs.
    """

    model: str
    layers: int
    curves: Sequence[Curve]


def accuracy_curves(
    panels: Mapping[str, Sequence[Learning]], looks: Looks, plateau: Plateau | None, about: About, path: Path
) -> list[Path]:
    """A panel for each width with a curve for every run; the best run of a model is bold, the others are thin.

    All panels have the same axes. Curves of models with several layers are dotted.

    Args:
        panels: Models of each panel, by its title.
        looks: Looks of the models, by name.
        plateau: Score to draw as a dashed line, or None.
        about: Title, task and training.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
    """
    from matplotlib.figure import Figure

    with styled():
        across = min(max(len(panels), 1), 2)
        down = max(-(-len(panels) // across), 1)
        figure = Figure(figsize=(1.6 + 4.4 * across, 0.3 + 2.7 * down), layout="constrained")
        axes = figure.subplots(down, across, sharey=True, squeeze=False).flat
        every = [curve for models in panels.values() for model in models for curve in model.curves if curve]
        longest = max((curve[-1][0] for curve in every), default=1)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for axis, (heading, models) in zip(axes, panels.items(), strict=False):
            axis.set(xlim=(0, longest), ylim=(0, 1.02), xlabel="training steps", title=heading)
            axis.grid(axis="y", color="#EEEEEE", zorder=0)
            ends = [end for learning in models for end in _draw_runs(axis, learning, looks)]
            if plateau is not None:
                axis.axhline(plateau.score, color=GREY, linestyle=DASHED, linewidth=1, zorder=1)
                ends.append(End(longest, plateau.score, f"{plateau.label} = {plateau.score:.2f}", GREY, bold=False))
            label_ends(axis, ends)
        for axis in axes[: len(panels) : across]:
            axis.set_ylabel("test accuracy")
        depths = {learning.layers for models in panels.values() for learning in models}
        add_caption(figure, about, _legend(depths, plateau))
        return save(figure, path)


def _draw_runs(axis: Any, learning: Learning, looks: Looks) -> list[End]:
    """Draw the curves of one model; returns the end of the best, or nothing if there are no curves."""
    drawn = sorted((c for c in learning.curves if c), key=lambda c: max(accuracy for _, accuracy in c))
    ends = []
    for i, curve in enumerate(drawn):
        steps, accuracy = zip((0, 0.0), *curve, strict=True)
        best = i == len(drawn) - 1
        colour = look_of(learning.model, looks).colour
        axis.plot(
            steps, accuracy, color=colour, linewidth=2.2 if best else 0.8, alpha=1 if best else 0.5,
            linestyle="-" if learning.layers == 1 else DEEP, solid_capstyle="round", zorder=3 if best else 2,
        )  # fmt: skip
        if best:
            several = f" (×{len(drawn)})" if len(drawn) > 1 else ""
            label = f"{name_and_depth(learning.model, learning.layers, looks)}  {max(accuracy):.2f}{several}"
            ends.append(End(steps[-1], accuracy[-1], label, colour))
            axis.plot(steps[-1], accuracy[-1], "o", color=colour, markersize=4, zorder=4, clip_on=False)
    return ends


def _legend(depths: set[int], plateau: Plateau | None) -> list[str]:
    legend = [
        "colours: models",
        "bold: best run of each model, with a dot at its last evaluation",
        "thin: its other learning rates and seeds",
        "numbers: best accuracy (× number of runs)",
    ]
    if max(depths, default=1) > 1:
        legend.append("solid: one layer, dotted: several")
    if plateau is not None:
        legend.append(f"dashed, {plateau.label}: {plateau.meaning}")
    return legend
