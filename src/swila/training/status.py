"""The status of a run, read from its directory alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swila.training.json_files import read_json_if_present
from swila.training.metrics import METRICS
from swila.training.progress import is_alive, read_progress
from swila.training.result import read_result
from swila.training.run_directory import CHECKPOINTS


def read_status(path: Path) -> dict[str, Any]:
    """Return the ``status`` of the run in a directory, with its result, or its progress and error.

    The status is that of the result, or ``"failed"``, ``"running"``, ``"interrupted"`` or ``"waiting"``. An invalid
    ``progress.json`` is ignored; an invalid ``result.json`` raises ValueError.
    """
    error, progress = _read_error(path / "error.json"), read_progress(path / "progress.json") or {}
    status = "interrupted" if progress or has_begun(path) else "waiting"
    if progress and is_alive(progress):
        status = "running"
    if (result := read_result(path / "result.json")) is not None:  # read last: the run may end meanwhile
        return dict(result)
    if error is not None:
        return {**progress, "status": "failed", "error": error}
    return {**progress, "status": status}


def has_begun(path: Path) -> bool:
    """Whether a run has left a checkpoint or metrics; its ``progress.json`` may be missing."""
    metrics = path / METRICS
    return (
        (path / "checkpoint.pt").exists()
        or any((path / CHECKPOINTS).glob("step-*"))
        or (metrics.exists() and metrics.stat().st_size > 0)
    )


def _read_error(path: Path) -> str | None:
    """Return why a run failed, or None if it did not."""
    try:
        found = read_json_if_present(path)
    except (ValueError, OSError) as error:
        return str(error)
    return None if found is None else str(found.get("error"))
