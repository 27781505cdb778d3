"""Metrics as they come: JSON lines, and TensorBoard where it is installed."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import Any

from swila.training.run_directory import RunDirectory


class MetricsWriter:
    """Appends to a run's metrics; lines after ``step`` (written after the checkpoint it goes on from) are dropped.

    Args:
        directory: of the run.
        step: the last step that counts.
        tensorboard: whether to write TensorBoard's event files too, if the package is there.
    """

    def __init__(self, directory: RunDirectory, step: int = 0, tensorboard: bool = True) -> None:
        path = directory.metrics_path
        kept = path.with_suffix(".tmp")
        kept.write_text("".join(json.dumps(line) + "\n" for line in directory.metrics() if line["step"] <= step))
        os.replace(kept, path)
        self._file = path.open("a")
        self._board: Any = None
        if tensorboard and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(directory.path), purge_step=step + 1)

    def write(self, line: dict[str, Any]) -> None:
        """One line, with its ``step``; numbers go to TensorBoard under their names."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in line.items():
                if name != "step" and isinstance(value, int | float):
                    self._board.add_scalar(name, value, line["step"])

    def close(self) -> None:
        """End both files."""
        self._file.close()
        if self._board is not None:
            self._board.close()
