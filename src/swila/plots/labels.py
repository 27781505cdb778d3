"""Labels inside a figure: at the ends of lines, and beside points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from swila.plots.style import ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Transform


class End(NamedTuple):
    """The end of a line, and its label.

    Attributes:
        x: Place of the end, in the coordinates of the axis.
        y: Height of the end, in the coordinates of the axis.
        label: Text of the label.
        colour: Colour of the line.
        shift: Number of typographic points by which the line was moved to the right.
        bold: Whether the label is bold.
    """

    x: float
    y: float
    label: str
    colour: str
    shift: float = 0.0
    bold: bool = True


def spread(heights: Sequence[float], gap: float, bottom: float = -math.inf, top: float = math.inf) -> list[float]:
    """Heights of labels that are at least ``gap`` apart, in the same order and as near to ``heights`` as possible.

    Overlapping labels form a stack that is centred on their heights; stacks are kept between ``bottom`` and ``top``.
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    stacks: list[tuple[float, int]] = []  # sum of the heights less those of the labels below, and number of labels
    for place, i in enumerate(order):
        total, count = heights[i] - place * gap, 1
        while stacks and stacks[-1][0] / stacks[-1][1] > total / count:
            below = stacks.pop()
            total, count = total + below[0], count + below[1]
        stacks.append((total, count))
    levels = [total / count for total, count in stacks for _ in range(count)]
    limit = top - (len(order) - 1) * gap
    placed = [0.0] * len(order)
    for place, (i, level) in enumerate(zip(order, levels, strict=True)):
        placed[i] = min(max(level, bottom), limit) + place * gap
    return placed


def label_ends(axis: Axes, ends: Sequence[End], gap: float = 0.07) -> None:
    """Write labels to the right of an axis, each joined to the end of its line by a thin leader line.

    The limits and the scale of the axis must be final.

    Args:
        axis: The axis; it may be logarithmic.
        ends: Ends of the lines.
        gap: Least distance between labels, as a fraction of the height of the axis.
    """
    scale = axis.yaxis.get_transform()
    low, high, *places = scale.transform([*axis.get_ylim(), *(end.y for end in ends)])
    spread_out = spread(places, gap=gap * (high - low), bottom=low, top=high - 0.02 * (high - low))
    heights = scale.inverted().transform(spread_out)
    for end, height in zip(ends, heights, strict=True):
        leader = {"arrowstyle": "-", "color": end.colour, "linewidth": 0.6, "alpha": 0.7, "relpos": (0, 0.5)}
        axis.annotate(
            end.label, (end.x, end.y), (1.08, height), xycoords=moved(axis, end.shift),
            textcoords=axis.get_yaxis_transform(), va="center", color=ink(end.colour),
            weight="bold" if end.bold else "normal", annotation_clip=False,
            arrowprops=leader | {"shrinkA": 3, "shrinkB": 3, "patchA": None},  # steep leaders too end at the text
        )  # fmt: skip


def moved(axis: Axes, shift: float) -> Transform:
    """The data coordinates of an axis, moved by ``shift`` typographic points to the right."""
    from matplotlib.transforms import ScaledTranslation

    return axis.transData + ScaledTranslation(shift / 72, 0, axis.figure.dpi_scale_trans)


def label_points(axis: Axes, labels: Sequence[tuple[float, float, str, str]]) -> None:
    """Write labels (x, y, text, colour) beside their points, where they cover as little as possible.

    It must be the last step of drawing an axis: the layout of the figure must be final.
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
    """Points along a line, in pixels; its corners count several times."""
    import numpy as np

    corners = line.get_transform().transform(line.get_xydata())
    parts = [np.linspace(a, b, 2 + int(np.hypot(*(b - a)) / step)) for a, b in pairwise(corners)]
    return np.vstack([*[corners] * 4, *parts])


def _in_box(box: Any) -> Any:
    """Points of a grid in a box, in pixels."""
    import numpy as np

    return np.array([(x, y) for x in np.linspace(box.x0, box.x1, 8) for y in np.linspace(box.y0, box.y1, 4)])
