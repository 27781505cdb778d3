"""The progress of a run, as ``progress.json`` holds it while the run is unfinished."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, NamedTuple

from swila.training.json_files import is_integer, is_number, read_json_if_present


class Progress(NamedTuple):
    """Progress of a run.

    Attributes:
        step: Number of updates so far.
        steps: Number of planned updates.
        score: Score of the last evaluation, None before the first.
        metric: Name of the score.
    """

    step: int
    steps: int
    score: float | None
    metric: str = "score"


def this_process() -> dict[str, Any]:
    """Return what identifies the process that trains: its ID and its host."""
    return {"pid": os.getpid(), "host": socket.gethostname()}


def read_progress(path: Path) -> dict[str, Any] | None:
    """Return the progress in a file, or None if the file does not exist or is invalid: no run depends on it."""
    try:
        progress = read_json_if_present(path)
    except (ValueError, OSError):
        return None
    if progress is None:
        return None
    for key in ("step", "steps", "score", "seconds"):
        value = progress.get(key, 0)
        if not is_number(value) and not (key == "score" and value is None):
            return None
    return progress


def is_alive(progress: dict[str, Any]) -> bool:
    """Whether the process that wrote this progress is alive; False for a process of another host."""
    pid = progress.get("pid")
    if not is_integer(pid) or not 0 < pid < 2**31:  # os.kill takes 0 and below for process groups
        return False
    if progress.get("host") != socket.gethostname():
        return False
    if os.name != "posix":  # on Windows os.kill(pid, 0) terminates the process
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
