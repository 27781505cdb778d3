"""The look all figures share: colours told apart in any vision, direct labels, no clutter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette
COLOURS = {
    "temporal-swila": "#D55E00",
    "swila": "#E69F00",
    "deltanet": "#0072B2",
    "gated-deltanet": "#56B4E9",
    "kda": "#CC79A7",
    "dn-mom": "#009E73",
    "attention": "#555555",
    "fox": "#999999",
}
# other colours than those of the models
CONTEXT_COLOURS = ("#7B3294", "#00796B", "#C2185B", "#827717", "#1A237E", "#6D4C41", "#0097A7", "#424242")

_RC: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "svg.fonttype": "none",
    "figure.dpi": 150,
    "savefig.bbox": "tight",
}


@contextmanager
def styled() -> Iterator[None]:
    """The style, and a canvas that needs no display."""
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and SVG beside each other; returns both paths."""
    paths = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for each in paths:
        figure.savefig(each, metadata={"Date": None} if each.suffix == ".svg" else None)
    return paths
