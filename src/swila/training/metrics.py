"""Metrics of a run: JSON lines, and TensorBoard's event files where TensorBoard is installed."""

from __future__ import annotations

import json
import os
import secrets
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
    return _parse(path.read_text()) if path.exists() else []


def read_last_metrics(path: Path, size: int = 2**20) -> list[dict[str, Any]]:
    """Return the lines of metrics in the last ``size`` bytes of a file, as :func:`read_metrics`."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        begin = max(path.stat().st_size - size, 0)
        file.seek(begin)
        text = file.read().decode(errors="replace")
    return _parse(text.partition("\n")[2] if begin else text)  # the first line is not complete


def _parse(text: str) -> list[dict[str, Any]]:
    lines = []
    for each in text.splitlines():
        with suppress(json.JSONDecodeError):
            line = json.loads(each)
            if isinstance(line, dict) and is_number(line.get("step")):
                lines.append(line)
    return lines


class MetricsWriter:
    """Appends to the metrics of a run; lines after ``step`` are dropped, since the run resumes from there.

    Args:
        directory: Directory of the run.
        step: Step of the checkpoint that the run resumes from, 0 for a new run.
        tensorboard: Whether to write TensorBoard's event files as well, if TensorBoard is installed.
        wandb: Project of Weights & Biases to write to as well, or None.
        config: Configuration of the run, for Weights & Biases.
    """

    def __init__(
        self,
        directory: Path,
        step: int = 0,
        tensorboard: bool = True,
        wandb: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        path = directory / METRICS
        kept = path.with_suffix(".tmp")
        kept.write_text("".join(json.dumps(line) + "\n" for line in read_metrics(path) if line["step"] <= step))
        os.replace(kept, path)
        self._file = path.open("a")
        self._board: Any = None
        if tensorboard and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(directory), purge_step=step + 1)
        self._wandb: Any = None
        if wandb is not None:
            if find_spec("wandb") is None:
                raise ValueError("wandb must be installed to write to it: pip install 'swila[wandb]'")
            import wandb as weights_and_biases

            self._wandb = weights_and_biases.init(
                project=wandb,
                name=directory.name,
                id=_wandb_id(directory),
                resume="allow",
                dir=directory,
                config=config,
            )

    def write(self, line: dict[str, Any]) -> None:
        """Append one line, which must have a ``step``; TensorBoard gets its numbers under their names."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        numbers = {name: x for name, x in line.items() if name != "step" and isinstance(x, int | float)}
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, line["step"])
        if self._wandb is not None:
            self._wandb.log(numbers, step=line["step"])

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def _wandb_id(directory: Path) -> str:
    """Return the ID of the run at Weights & Biases, kept with the run so that it resumes there too."""
    path = directory / "wandb-id"
    if not path.exists():
        path.write_text(secrets.token_hex(8))
    return path.read_text()
