"""The paper's figure S5: routing diagnostics over training, of several runs or of the layers of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from swila.plots.caption import About, add_caption
from swila.plots.curves import Curve
from swila.plots.pretraining import SMOOTHED, XLABEL
from swila.plots.smoothing import smooth
from swila.plots.style import Look, save, short, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDES = {"query": "query side", "key": "key-value side"}
STATISTICS = {
    "utilization_entropy": "utilisation entropy",
    "routing_entropy": "routing entropy",
    "dead_fraction": "dead-expert fraction",
}
DIAGNOSTICS = tuple(f"{side}_{statistic}" for side in SIDES for statistic in STATISTICS)
_MEANING = [
    "utilisation entropy: of the mean usage of the mixtures, 1 if all are used alike",
    "routing entropy: mean over the tokens, 0 if each token has one mixture",
    "dead: used less than a tenth as much as on average",
]


class RoutingSeries(NamedTuple):
    """The diagnostics of a run, as means over its layers.

    Attributes:
        label: Name in the legend.
        look: Colour and line style.
        curves: Values against tokens, by the names of ``DIAGNOSTICS``.
    """

    label: str
    look: Look
    curves: Mapping[str, Curve]


def routing_runs_figure(runs: Sequence[RoutingSeries], about: About, path: Path) -> list[Path]:
    """Six panels with a curve for each run: query side above, key-value side below.

    Args:
        runs: Diagnostics of the runs.
        about: Title, data and training.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
    """
    with styled():
        figure, axes = _panels([run.curves for run in runs])
        for run in runs:
            style: dict[str, Any] = {"color": run.look.colour, "linestyle": run.look.line, "linewidth": 1.6}
            for name, axis in axes.items():
                _draw(axis, run.curves.get(name, ()), **style)
        lines = [axes[DIAGNOSTICS[0]].plot([], [], color=r.look.colour, linestyle=r.look.line)[0] for r in runs]
        figure.legend(
            lines, [run.label for run in runs], loc="outside right upper", frameon=False, handlelength=2.6, fontsize=8.5
        )
        add_caption(figure, about, [f"curves: means over the layers, and {SMOOTHED}", *_MEANING])
        return save(figure, path)


def routing_layers_figure(layers: Mapping[int, Mapping[str, Curve]], about: About, path: Path) -> list[Path]:
    """Six panels with a curve for each layer of one run: query side above, key-value side below.

    Args:
        layers: Diagnostics of the layers, by their indices.
        about: Title, data and training.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
    """
    import matplotlib
    import numpy as np
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.ticker import MaxNLocator

    with styled():
        figure, axes = _panels(list(layers.values()))
        shades = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.92, 256)))  # without the palest
        norm = Normalize(min(layers), max(max(layers), min(layers) + 1))
        for index, curves in sorted(layers.items()):
            for name, axis in axes.items():
                _draw(axis, curves.get(name, ()), color=shades(norm(index)), linewidth=1.1)
        bar = figure.colorbar(
            ScalarMappable(norm, shades), ax=list(axes.values()), label="layer, counted from 0", shrink=0.8, pad=0.02
        )
        bar.locator = MaxNLocator(integer=True)
        bar.update_ticks()
        add_caption(figure, about, [f"curves: layers, each {SMOOTHED}", *_MEANING])
        return save(figure, path)


def _panels(drawn: Sequence[Mapping[str, Curve]]) -> tuple[Figure, dict[str, Any]]:
    """A figure of six panels, by the names of ``DIAGNOSTICS``; those of one column have the same vertical axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.4, 4.2), layout="constrained")
    grid = figure.subplots(len(SIDES), len(STATISTICS), sharex=True)
    longest = max((curve[-1][0] for curves in drawn for curve in curves.values() if curve), default=1)
    axes = {}
    for row, (side, told) in zip(grid, SIDES.items(), strict=True):
        for axis, (statistic, title) in zip(row, STATISTICS.items(), strict=True):
            of_both = [f"{each}_{statistic}" for each in SIDES]
            values = [value for curves in drawn for name in of_both for _, value in smooth(curves.get(name, ()))]
            axis.set(xlim=(0, longest), ylim=_range(values, statistic))
            axis.xaxis.set_major_formatter(lambda tokens, _: short(tokens))
            axis.grid(axis="y", color="#EEEEEE", zorder=0)
            axes[f"{side}_{statistic}"] = axis
            if side == next(iter(SIDES)):
                axis.set_title(title)
        row[0].set_ylabel(told)
    for axis in grid[-1]:
        axis.set_xlabel(XLABEL)
    return figure, axes


def _range(values: Sequence[float], statistic: str) -> tuple[float, float]:
    """Limits with 1 at the top for entropies, and 0 at the bottom for fractions."""
    if statistic == "dead_fraction":
        high = max(0.1, *values, 0.0)
        return -0.04 * high, 1.06 * high
    low = min([0.9, *values])
    return low - 0.06 * (1 - low), 1 + 0.04 * (1 - low)


def _draw(axis: Any, curve: Curve, **style: Any) -> None:
    if curve:
        axis.plot(*zip(*smooth(curve), strict=True), zorder=3, **style)
