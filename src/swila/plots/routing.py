"""Which mixture holds which context: responsibilities and query mix over one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swila.plots.caption import About, add_caption
from swila.plots.style import CONTEXT_COLOURS, save, styled

MOST_CONTEXTS = len(CONTEXT_COLOURS)


class RoutingPanel(NamedTuple):
    """One row of cells for each output dimension, one column for each token.

    Attributes:
        title: Title of the panel.
        shares: Array ``[rows, T, C]``: how much of a token's weight goes to the mixture of each context.
        dims: Output dimension of each row.
    """

    title: str
    shares: Any
    dims: Sequence[int]


def routing_picture(
    panels: Sequence[RoutingPanel],
    context: Sequence[int],
    tokens: Sequence[str] | None,
    boundary: int,
    about: About,
    legend: Sequence[str],
    path: Path,
) -> list[Path]:
    """The tokens of one sequence in the colours of their contexts, and below them the mixtures that a model used.

    A cell has the colour of the context whose mixture has the largest share of the token. It is paler the more the
    token is shared among mixtures, and white where it is shared evenly.

    Args:
        panels: Panels from top to bottom.
        context: Context of each token, from 1 to C, or -1 for none.
        tokens: Text on each token; None for no text (long sequences).
        boundary: Index of the first token of the queries.
        about: Title, task and training.
        legend: How mixtures were assigned to contexts, and the meaning of the texts on tokens, in phrases.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
    """
    import numpy as np
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    if max(context) > MOST_CONTEXTS:
        raise ValueError(f"context must have at most {MOST_CONTEXTS} contexts, one for each colour, got {max(context)}")
    palette = np.array([to_rgb(colour) for colour in CONTEXT_COLOURS])
    T = len(context)
    with styled():
        heights = [0.7] + [min(0.2 * max(len(panel.shares), 4), 2.4) for panel in panels]
        figure = Figure(figsize=(10.4, 1.2 + 0.75 * sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels) + 1, 1, sharex=True, gridspec_kw={"height_ratios": heights})
        strip = np.array([palette[c - 1] if c > 0 else (1, 1, 1) for c in context])
        axes[0].imshow(strip[None], aspect="auto", extent=(-0.5, T - 0.5, 0, 1), alpha=0.9)
        for t, text in enumerate(tokens or []):
            axes[0].text(t, 0.5, text, ha="center", va="center", color="white", fontsize=8, weight="bold")
        axes[0].set(yticks=[], title="tokens in the colours of their contexts: pairs to remember, then queries")
        for axis, panel in zip(axes[1:], panels, strict=True):
            shares = np.asarray(panel.shares)
            C = shares.shape[-1]
            strength = (shares.max(-1, keepdims=True) - 1 / C) / (1 - 1 / C)
            cells = 1 - strength.clip(0, 1) * (1 - palette[shares.argmax(-1)])
            axis.imshow(cells, aspect="auto", interpolation="nearest")
            axis.set(title=panel.title, ylabel="output dim")
            few = len(panel.dims) <= 16
            axis.set_yticks(range(len(panel.dims)) if few else [], panel.dims if few else [], fontsize=7)
        for axis in axes:
            axis.axvline(boundary - 0.5, color="black", linewidth=1.2)
            axis.spines[:].set_visible(True)
            axis.spines[:].set_color("#CCCCCC")
            axis.tick_params(length=0)
        axes[-1].set_xlabel("token")
        cells_note = "pale: the token is shared among mixtures, white: evenly"
        line_note = "vertical line: first query"
        add_caption(figure, about, [*legend, cells_note, line_note])
        return save(figure, path)
