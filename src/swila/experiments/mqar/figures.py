"""Figures of MQAR."""

from __future__ import annotations

from pathlib import Path

from swila.experiments.recall import figures as recall_figures
from swila.experiments.recall.summary import RecallRow
from swila.experiments.record import Record


def draw(record: Record[RecallRow], out: Path, directory: Path | None = None) -> list[list[Path]]:
    """Accuracy against state size, and against training steps."""
    return recall_figures.draw(record, out, title(record))


def title(record: Record[RecallRow]) -> str:
    """Name and size of the task."""
    task = record["task"]
    return f"MQAR: {task['num_pairs']} pairs, length {task['length']:,}"
