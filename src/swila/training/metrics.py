"""Metrics of a run: JSON lines, and TensorBoard's event files where TensorBoard is installed."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from swila.training.json_files import is_number

METRICS = "metrics.jsonl"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of metrics, without those that are not a JSON object with a step.

    A crash may have cut off a line.
    """
    if not path.exists():
        return []
    lines = []
    for text in path.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            line = json.loads(text)
            if isinstance(line, dict) and is_number(line.get("step")):
                lines.append(line)
    return lines


class MetricsWriter:
    """Appends to the metrics of a run; lines after ``step`` are dropped, since the run resumes from there.

    Args:
        directory: Directory of the run.
        step: Step of the checkpoint that the run resumes from, 0 for a new run.
        tensorboard: Whether to write TensorBoard's event files as well, if TensorBoard is installed.
    """

    def __init__(self, directory: Path, step: int = 0, tensorboard: bool = True) -> None:
        path = directory / METRICS
        kept = path.with_suffix(".tmp")
        kept.write_text("".join(json.dumps(line) + "\n" for line in read_metrics(path) if line["step"] <= step))
        os.replace(kept, path)
        self._file = path.open("a")
        self._board: Any = None
        if tensorboard and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(directory), purge_step=step + 1)

    def write(self, line: dict[str, Any]) -> None:
        """Append one line, which must have a ``step``; TensorBoard gets its numbers under their names."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in line.items():
                if name != "step" and isinstance(value, int | float):
                    self._board.add_scalar(name, value, line["step"])

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()
