"""Throughput and peak memory of models against the length of a sequence or the size of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from swila.plots.caption import About, add_caption
from swila.plots.labels import End, label_ends
from swila.plots.style import DASHED, GREY, Look, save, short, styled


class ThroughputLine(NamedTuple):
    """The measurements of one model.

    Attributes:
        look: Title, colour and marker.
        points: Size, tokens per second, and peak memory in bytes or None, by growing size.
        without_memory: Sizes at which the model ran out of memory.
        is_baseline: Whether it is drawn with dashes.
    """

    look: Look
    points: Sequence[tuple[int, float, float | None]]
    without_memory: Sequence[int] = ()
    is_baseline: bool = False


def throughput_figure(
    lines: Sequence[ThroughputLine], axis_label: str, about: About, legend: Sequence[str], path: Path
) -> list[Path]:
    """Two panels, throughput and peak memory against a size; a cross below marks a size without enough memory.

    Args:
        lines: The models.
        axis_label: What the sizes are.
        about: Title, task and training.
        legend: Phrases of the caption beside those about marks.
        path: Where to save; the suffix is replaced by ``.png`` and ``.svg``.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with styled():
        figure = Figure(figsize=(11.5, 3.9), layout=ConstrainedLayoutEngine(wspace=0.04))
        left, right = figure.subplots(1, 2)
        speeds = [[(x, speed / 1e3) for x, speed, _ in line.points] for line in lines]
        peaks = [[(x, peak / 1e9) for x, _, peak in line.points if peak is not None] for line in lines]
        _panel(left, lines, speeds, axis_label, "thousand tokens per second", "Throughput")
        _panel(right, lines, peaks, axis_label, "GB", "Peak memory")
        marks = ["colours and markers: models"]
        if any(line.is_baseline for line in lines):
            marks.append("dashed: the baseline")
        if any(line.without_memory for line in lines):
            marks.append("X below 0: out of memory at this size, in the colour of the model")
        add_caption(figure, about, [*marks, *legend])
        return save(figure, path)


def _panel(
    axis: Any,
    lines: Sequence[ThroughputLine],
    values: Sequence[Sequence[tuple[int, float]]],
    axis_label: str,
    unit: str,
    title: str,
) -> None:
    sizes = sorted({x for line in lines for x in (*(point[0] for point in line.points), *line.without_memory)})
    highest = max((y for points in values for _, y in points), default=1.0)
    short_of = [line for line in lines if line.without_memory]
    floor = -0.055 * highest * len(short_of)  # room for a row of crosses for each of these models
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [_size(size) for size in sizes])
    axis.set_xticks([], minor=True)
    axis.set(ylim=(floor, 1.06 * highest), xlabel=axis_label, ylabel=unit, title=title)
    if sizes:
        axis.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= 1.06 * highest])
    axis.grid(axis="y", color="#EEEEEE", zorder=0)
    if short_of:
        axis.axhline(0, color=GREY, linewidth=0.8, zorder=1)
    ends = []
    for line, points in zip(lines, values, strict=True):
        look = line.look
        if points:
            axis.plot(
                *zip(*points, strict=True), color=look.colour, marker=look.marker, markersize=6.5, linewidth=1.8,
                linestyle=DASHED if line.is_baseline else "-", markeredgecolor="white", markeredgewidth=0.6,
                zorder=5 if line.is_baseline else 4,
            )  # fmt: skip
            ends.append(End(*points[-1], f"{look.title}  {_number(points[-1][1])}", look.colour))
    for row, line in enumerate(short_of):
        height = floor * (row + 0.6) / len(short_of)
        axis.plot(
            line.without_memory, [height] * len(line.without_memory), color=line.look.colour, linestyle="", marker="x",
            markersize=6, markeredgewidth=1.8, zorder=6, clip_on=False,
        )  # fmt: skip
    label_ends(axis, ends)


def _size(size: int) -> str:
    return f"{size // 1024}K" if size >= 1024 and size % 1024 == 0 else short(size)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
