"""Which mixture holds which context: responsibilities and query mix over one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swila.plots.style import CONTEXT_COLOURS, save, styled


class RoutingPanel(NamedTuple):
    """One row of cells for each output dimension, one column for each token.

    Attributes:
        title: what is shown.
        shares: ``[rows, T, C]``; how much of a token's weight goes to the mixture that belongs to each context.
        rows: the number of the output dimension in each row.
    """

    title: str
    shares: Any
    rows: Sequence[int]


def routing_picture(
    panels: Sequence[RoutingPanel],
    context: Sequence[int],
    tokens: Sequence[str] | None,
    boundary: int,
    title: str,
    path: Path,
) -> list[Path]:
    """The tokens of one sequence in the colours of their contexts, and below where a model sent them.

    A cell has the colour of the context whose mixture has most of the token, and is the paler the more it is shared.

    Args:
        panels: from top to bottom.
        context: of each token, 1 ... C, or -1.
        tokens: what to write on each token; None for nothing (long sequences).
        boundary: first token of the queries.
        title: of the figure.
        path: where to; the suffix is replaced by ``.png`` and ``.svg``.
    """
    import numpy as np
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    palette = np.array([to_rgb(colour) for colour in CONTEXT_COLOURS])
    T = len(context)
    with styled():
        heights = [1.0] + [min(0.22 * max(len(panel.shares), 4), 2.6) for panel in panels]
        figure = Figure(figsize=(max(8.0, min(0.42 * T, 13)), 1.6 + 0.75 * sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels) + 1, 1, sharex=True, gridspec_kw={"height_ratios": heights})
        strip = np.array([palette[(c - 1) % len(palette)] if c > 0 else (1, 1, 1) for c in context])
        axes[0].imshow(strip[None], aspect="auto", extent=(-0.5, T - 0.5, 0, 1), alpha=0.9)
        for t, text in enumerate(tokens or []):
            axes[0].text(t, 0.5, text, ha="center", va="center", color="white", fontsize=8, weight="bold")
        axes[0].set(yticks=[], title="the sequence, pairs to remember and then queries, in the colours of its contexts")
        for axis, panel in zip(axes[1:], panels, strict=True):
            shares = np.asarray(panel.shares)
            C = shares.shape[-1]
            strength = (shares.max(-1, keepdims=True) - 1 / C) / (1 - 1 / C)
            cells = 1 - strength.clip(0, 1) * (1 - palette[shares.argmax(-1) % len(palette)])
            axis.imshow(cells, aspect="auto", interpolation="nearest")
            axis.set(title=panel.title, ylabel="output dim")
            few = len(panel.rows) <= 16
            axis.set_yticks(range(len(panel.rows)) if few else [], panel.rows if few else [], fontsize=7)
        for axis in axes:
            axis.axvline(boundary - 0.5, color="black", linewidth=1.2)
            axis.spines[:].set_visible(True)
            axis.spines[:].set_color("#CCCCCC")
            axis.tick_params(length=0)
        axes[-1].set_xlabel("token; colour: the context whose mixture has it, white: shared evenly")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, weight="bold")
        return save(figure, path)
