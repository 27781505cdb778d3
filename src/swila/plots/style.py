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
    "dn-mom": "#009E73",
    "attention": "#555555",
}
CONTEXT_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#555555")

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
