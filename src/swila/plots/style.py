"""The style that all figures share, and how a figure is saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Look(NamedTuple):
    """How a model looks in tables and figures.

    Attributes:
        title: Name of the model in labels.
        colour: Colour of its lines and markers.
        marker: Marker of matplotlib.
        line: Line style of matplotlib.
    """

    title: str
    colour: str = "black"
    marker: str = "o"
    line: Any = "-"


Looks = Mapping[str, Look]


def look_of(model: str, looks: Looks) -> Look:
    """The look of a model; a model without one is black and called by its name."""
    return looks[model] if model in looks else Look(model)


class Plateau(NamedTuple):
    """A score that a model can reach without solving the task, drawn as a dashed line.

    Attributes:
        score: The score.
        label: Label of the line.
        meaning: What a model knows that has this score.
    """

    score: float
    label: str
    meaning: str


GREY = "#777777"
DASHED: Any = (0, (4, 3))
DEEP: Any = (0, (1, 1.4))  # line style of models with several layers
# Colours of contexts, none of which is the colour of a model
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
    """A context in which figures have the shared style."""
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and as SVG; returns both paths."""
    paths = [path.with_suffix(".png"), path.with_suffix(".svg")]
    for each in paths:
        figure.savefig(each, metadata={"Date": None} if each.suffix == ".svg" else None)
    return paths


def name_and_depth(model: str, layers: int, looks: Looks) -> str:
    """``SwiLA``, or ``SwiLA, 2 layers``."""
    return look_of(model, looks).title + ("" if layers == 1 else f", {layers} layers")


def ink(colour: str) -> str:
    """A colour made dark enough to read as text on white (contrast 4.5 to 1)."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = to_rgb(colour)
    while 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 1.05 / 4.5 - 0.05:
        red, green, blue = 0.97 * red, 0.97 * green, 0.97 * blue
    return to_hex((red, green, blue))


def short(count: float) -> str:
    """A count in few characters: 500, 2.5k, 40k, 1.2M, 15B."""
    for unit, sign in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:g}{sign}"
    return f"{count:g}"


def readable(value: float) -> str:
    """A positive number with about four digits: 3.2e+06, 1,631.7, 123.4, 12.34."""
    if not value < 1e6:
        return f"{value:.1e}"
    return f"{value:,.1f}" if value >= 99.995 else f"{value:.2f}"


def shade(colour: str, amount: float) -> str:
    """A colour ``#RRGGBB`` mixed with white (``amount`` above 0) or with black (below 0)."""
    other, share = (255, amount) if amount > 0 else (0, -amount)
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + share * (other - part)):02X}" for part in parts)
