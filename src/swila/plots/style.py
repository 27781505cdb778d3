"""The look all figures share: colours told apart in any vision, direct labels, no clutter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

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
# for print in grey, where colours are not enough
MARKERS = {
    "temporal-swila": "D",
    "swila": "o",
    "deltanet": "s",
    "gated-deltanet": "P",
    "kda": "X",
    "dn-mom": "^",
    "attention": "v",
    "fox": "p",
}
LINES: dict[str, Any] = {
    "temporal-swila": (0, (9, 1.5)),
    "swila": "-",
    "deltanet": (0, (5, 1.5, 1, 1.5)),
    "gated-deltanet": (0, (5, 1.5, 1, 1.5, 1, 1.5)),
    "kda": (0, (7, 3)),
    "dn-mom": (0, (2.5, 1.2)),
    "attention": (0, (5, 2.5)),
    "fox": (0, (1, 1)),
}
DEEP: Any = (0, (1, 1.4))  # of a model with several layers, beside one with one
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


def spread(labels: list[tuple[float, str, str]], gap: float, top: float = math.inf) -> list[tuple[float, str, str]]:
    """Labels (height, text, colour), moved up where they would overlap, and down again from above ``top``."""
    placed: list[tuple[float, str, str]] = []
    for height, label, colour in sorted(labels):
        placed.append((height if not placed else max(height, placed[-1][0] + gap), label, colour))
    for i in range(len(placed) - 1, -1, -1):
        height, label, colour = placed[i]
        placed[i] = (min(height, top), label, colour)
        top = placed[i][0] - gap
    return placed


def name_and_depth(model: str, layers: int, names: Mapping[str, str]) -> str:
    """``SwiLA``, or ``SwiLA, 2 layers``."""
    return names.get(model, model) + ("" if layers == 1 else f", {layers} layers")


def ink(colour: str) -> str:
    """A colour made dark enough to read as text on white (contrast 4.5 to 1)."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = to_rgb(colour)
    while 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 1.05 / 4.5 - 0.05:
        red, green, blue = 0.97 * red, 0.97 * green, 0.97 * blue
    return to_hex((red, green, blue))


def finite(scores: Sequence[float]) -> list[float]:
    """The scores without those of runs that diverged."""
    return [score for score in scores if math.isfinite(score)]


def seeds_note(runs: Sequence[Sequence[float]]) -> list[str]:
    """What to say below a figure about the scores of several seeds each."""
    notes = ["marks: mean; bars: worst to best seed"] if any(len(finite(scores)) > 1 for scores in runs) else []
    if diverged := sum(len(scores) - len(finite(scores)) for scores in runs):
        notes.append(f"{diverged} diverged {'run is' if diverged == 1 else 'runs are'} left out")
    return notes


def counts_note(what: str, counts: Mapping[str, Sequence[int]]) -> str:
    """How many scores stand behind the marks: ``3 seeds a mark``, or where that differs, place by place.

    Args:
        what: in the singular, ``seed`` or ``run``.
        counts: place, in words -> how many each of its marks has; neighbours that agree are put together.
    """
    spans = {place: (min(found), max(found)) for place, found in counts.items() if found}
    if not spans:
        return ""
    if len(set(spans.values())) == 1:
        low, high = next(iter(spans.values()))
        return f"{_span(low, high)} {what}{'' if high == 1 else 's'} a mark"
    grouped: list[tuple[list[str], tuple[int, int]]] = []
    for place, span in spans.items():
        if grouped and grouped[-1][1] == span:
            grouped[-1][0].append(place)
        else:
            grouped.append(([place], span))
    told = [f"{_span(*span)} at {places[0]}{f' to {places[-1]}' if places[1:] else ''}" for places, span in grouped]
    return f"{what}s a mark: {', '.join(told)}"


def _span(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def caption(figure: Figure, title: str, notes: Sequence[str]) -> None:
    """The title above a figure, and notes in small print below it."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, weight="bold")
    note = fill("; ".join(notes), width=int(16 * figure.get_figwidth()))
    figure.supxlabel(note, x=0.01, ha="left", fontsize=7.5, color="#666666")


def short(count: float) -> str:
    """A count in few characters: 500, 2.5k, 40k, 1.2M."""
    for unit, sign in ((1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:g}{sign}"
    return f"{count:g}"


def moved(axis: Axes, shift: float) -> Transform:
    """Places of an axis' data, ``shift`` typographic points to the right."""
    from matplotlib.transforms import ScaledTranslation

    return axis.transData + ScaledTranslation(shift / 72, 0, axis.figure.dpi_scale_trans)


def label_ends(
    axis: Axes,
    ends: Mapping[str, tuple[float, float, str]],
    shifts: Mapping[str, float] | None = None,
    colours: Mapping[str, str] = COLOURS,
) -> None:
    """Write labels to the right of an axis, joined to the ends of their curves by thin lines.

    Args:
        axis: its limits must be settled.
        ends: model -> x and y of the end of its curve, and the label.
        shifts: model -> by how many points its curve was moved to the right.
        colours: model -> of its curve.
    """
    low, high = axis.get_ylim()
    labels = [(y, label, model) for model, (_, y, label) in ends.items()]
    for height, label, model in spread(labels, gap=0.065 * (high - low), top=high):
        colour = colours.get(model, "black")
        join = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.7, "relpos": (0, 0.5)}
        axis.annotate(
            label, ends[model][:2], (1.05, height), xycoords=moved(axis, (shifts or {}).get(model, 0)),
            textcoords=axis.get_yaxis_transform(), va="center", color=ink(colour), weight="bold",
            annotation_clip=False, arrowprops=join | {"shrinkA": 0, "shrinkB": 4},
        )  # fmt: skip


def label_points(axis: Axes, labels: Sequence[tuple[float, float, str, str]]) -> None:
    """Write labels (x, y, text, colour) beside their points, each where it covers least of the lines and texts there.

    The last thing to do with an axis: the layout of the figure must be settled.
    """
    import numpy as np
    from matplotlib.transforms import Bbox

    point = axis.figure.dpi / 72  # in pixels
    lines = [_on_line(line, 2 * point) for line in axis.lines]
    taken = np.vstack([np.empty((0, 2)), *lines, *(_in_box(text.get_window_extent()) for text in axis.texts)])
    directions = [(-0.6, 1), (0, 1), (-1, 0.3), (0.6, 1), (1, -0.3), (0.6, -1), (0, -1), (-0.6, -1), (1, 0.3)]
    for x, y, text, colour in labels:
        size = np.array((6.3 * len(text), 8)) * point
        places = []
        for distance in (1.0, 1.5, 2.2):
            for rank, direction in enumerate(directions):
                step = np.array(direction) * (size / 2 + np.array((4, 5)) * distance * point)
                centre = axis.transData.transform((x, y)) + step
                box = Bbox([centre - size / 2 - 2 * point, centre + size / 2 + 2 * point])
                outside = not (axis.bbox.contains(*box.p0) and axis.bbox.contains(*box.p1))
                places.append((box.count_contains(taken) + 20 * outside + 2 * distance + 0.1 * rank, *centre))
        _, *best = min(places)
        taken = np.vstack([taken, _in_box(Bbox([best - size / 2, best + size / 2]))])
        x, y = axis.transData.inverted().transform(best)
        axis.text(x, y, text, color=ink(colour), ha="center", va="center", fontsize=8, weight="bold", zorder=8)


def _on_line(line: Any, step: float) -> Any:
    """Places along a line that is drawn, in pixels; its marks count more."""
    import numpy as np

    corners = line.get_transform().transform(line.get_xydata())
    parts = [np.linspace(a, b, 2 + int(np.hypot(*(b - a)) / step)) for a, b in pairwise(corners)]
    return np.vstack([*[corners] * 4, *parts])


def _in_box(box: Any) -> Any:
    """Places all over a box, in pixels."""
    import numpy as np

    return np.array([(x, y) for x in np.linspace(box.x0, box.x1, 8) for y in np.linspace(box.y0, box.y1, 4)])
