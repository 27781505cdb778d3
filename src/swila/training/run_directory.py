"""The directory of one run: configuration, environment, progress, metrics, checkpoint and result."""

from __future__ import annotations

import json
import os
import shutil
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from swila.environment import environment
from swila.training.json_files import first_difference, read_json, write_json
from swila.training.metrics import METRICS, read_metrics
from swila.training.progress import Progress, read_progress, this_process
from swila.training.result import RunResult, read_result

CHECKPOINTS = "checkpoints"  # directory of a pretraining run; other runs have one checkpoint.pt
WRITTEN_BY_RUNS = ("environment.json", "result.json", "progress.json", METRICS, "checkpoint.pt")
LEFT_BY_A_CRASH = ("progress.json", "progress.tmp", "environment.json", "environment.tmp", "config.tmp")
"""Files that a crash can leave before ``config.json`` exists."""
NOTE_EVERY = 2.0  # seconds between updates of progress.json


class RunDirectory:
    """The files of one run.

    ``config.json`` (the configuration), ``environment.json`` (hardware, versions, commit), ``metrics.jsonl`` (one line
    per evaluation), TensorBoard's event files, ``checkpoint.pt`` (the state to resume from; a pretraining run has a
    directory ``checkpoints`` instead) and ``result.json`` once the run has ended. Until then ``progress.json``, and
    ``error.json`` if the run failed. A directory belongs to one configuration: opening it with another one is an error.

    Args:
        path: The directory; created if it does not exist.
        config: Everything that determines the run, as JSON. None opens an existing run, whatever its configuration.
        fresh: Whether to delete an existing run.
    """

    def __init__(self, path: str | Path, config: dict[str, Any] | None = None, fresh: bool = False) -> None:
        self.path = Path(path)
        self._noted = 0.0
        if config is None:
            if not is_run(self.path):
                raise ValueError(f"{path} holds no run")
            return
        self.check(path, config, fresh)
        if fresh and self.path.exists():
            aside = self.path.with_name(f".{self.path.name}.discarded")
            shutil.rmtree(aside, ignore_errors=True)
            self.path.rename(aside)  # atomic: a crash leaves no part of a run
            shutil.rmtree(aside)
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "environment.json").exists():
            write_json(self.path / "environment.json", environment())
        if not (self.path / "config.json").exists():
            write_json(self.path / "config.json", config)

    @staticmethod
    def check(path: str | Path, config: dict[str, Any], fresh: bool = False) -> None:
        """Raise ValueError unless the directory is empty or holds this run (with ``fresh``: any run)."""
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise ValueError(f"the run directory {path} is a file; choose another directory")
        if is_run(path):
            if fresh:
                return
            if difference := first_difference(read_json(path / "config.json"), json.loads(json.dumps(config))):
                raise ValueError(
                    f"{path} holds another run ({difference}); choose another directory, or delete that run (--fresh)"
                )
        elif path.exists() and any(file.name not in LEFT_BY_A_CRASH for file in path.iterdir()):
            raise ValueError(f"{path} is not empty and holds no run; choose another directory")

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the run."""
        return read_json(self.path / "config.json")

    @property
    def environment(self) -> dict[str, Any]:
        """Hardware, versions and commit at the start of the run."""
        return read_json(self.path / "environment.json")

    @property
    def result(self) -> RunResult | None:
        """Result of the run, None while it is unfinished."""
        return read_result(self.path / "result.json")

    def finish(self, result: RunResult) -> None:
        """Write the result."""
        write_json(self.path / "result.json", result)
        (self.path / "progress.json").unlink(missing_ok=True)

    def note_start(self) -> None:
        """Record that this process trains the run, and delete the error of an earlier one."""
        (self.path / "error.json").unlink(missing_ok=True)
        self._noted = time.monotonic()
        before = read_progress(self.path / "progress.json") or {"step": 0}
        write_json(self.path / "progress.json", before | this_process())

    def note_progress(self, progress: Progress, now: bool = False) -> None:
        """Record the progress if the last record is a few seconds old; with ``now`` in any case."""
        if now or time.monotonic() - self._noted > NOTE_EVERY:
            self._noted = time.monotonic()
            write_json(self.path / "progress.json", progress._asdict() | this_process())

    def note_failure(self, error: Exception) -> None:
        """Record why the run failed."""
        text = "".join(traceback.format_exception(error))
        write_json(self.path / "error.json", {"error": f"{type(error).__name__}: {error}", "traceback": text})

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint atomically."""
        temporary = self.path / "checkpoint.tmp"
        torch.save(state, temporary)
        os.replace(temporary, self.path / "checkpoint.pt")

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the last checkpoint on the CPU, or None."""
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many types
            ended = (self.path / "result.json").exists()
            advice = "the run has ended and keeps its result" if ended else "delete it to restart the run"
            raise ValueError(f"{path} cannot be read; {advice}") from error

    @property
    def metrics_path(self) -> Path:
        """File of the metrics, one JSON object a line."""
        return self.path / METRICS

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics so far."""
        return read_metrics(self.metrics_path)


def is_run(path: Path) -> bool:
    """Whether a directory holds a run; a ``config.json`` alone may be that of a saved model."""
    return (path / "config.json").exists() and any((path / name).exists() for name in WRITTEN_BY_RUNS)


def runs_below(directory: Path) -> list[Path]:
    """Return the run directories in a directory; hidden ones are about to be deleted and do not count."""
    found = (path.parent for path in directory.glob("*/config.json"))
    return sorted(path for path in found if is_run(path) and not path.name.startswith("."))
