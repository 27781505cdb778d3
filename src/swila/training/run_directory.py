"""A directory per run: what was run, where, what came out, and where to go on."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

import torch

from swila.environment import environment

WRITTEN_BY_RUNS = ("environment.json", "result.json", "progress.json", "metrics.jsonl", "checkpoint.pt")


class RunDirectory:
    """The files of one run.

    ``config.json`` (what was run), ``environment.json`` (hardware, versions, commit), ``metrics.jsonl`` (a line per
    evaluation), TensorBoard's event files, ``checkpoint.pt`` (to go on from, with the last and the chosen weights) and,
    when it is over, ``result.json``; until then ``progress.json``, and ``error.json`` if it could not go on. It belongs
    to one configuration: opening it with another is an error.

    Args:
        path: the directory; made if it does not exist.
        config: everything that determines the run, as JSON; None for a run that is there, whatever it is.
        fresh: whether to throw away a run that is already there.
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
            self.path.rename(aside)  # in one stroke: a crash leaves no half of a run
            shutil.rmtree(aside)
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "environment.json").exists():
            write_json(self.path / "environment.json", environment())
        if not (self.path / "config.json").exists():
            write_json(self.path / "config.json", config)

    @staticmethod
    def check(path: str | Path, config: dict[str, Any], fresh: bool = False) -> None:
        """Raise ValueError unless the directory is free, or holds this run (with ``fresh``: any run)."""
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise ValueError(f"the run directory {path} is a file; choose another place")
        if is_run(path):
            if fresh:
                return
            if difference := first_difference(read_json(path / "config.json"), json.loads(json.dumps(config))):
                raise ValueError(
                    f"{path} holds another run ({difference}); choose another directory, or start over (--fresh)"
                )
        elif path.exists() and any(not _our_remains(file) for file in path.iterdir()):
            raise ValueError(f"{path} is not empty and holds no run; choose another directory")

    @property
    def config(self) -> dict[str, Any]:
        """What was run."""
        return read_json(self.path / "config.json")

    @property
    def result(self) -> dict[str, Any] | None:
        """What came out, or None if the run is not over."""
        return _read_result(self.path / "result.json")

    @property
    def environment(self) -> dict[str, Any]:
        """Where the run began: hardware, versions, commit."""
        return read_json(self.path / "environment.json")

    def finish(self, result: dict[str, Any]) -> None:
        """Write down what came out."""
        write_json(self.path / "result.json", result)
        (self.path / "progress.json").unlink(missing_ok=True)

    def note_start(self) -> None:
        """Note that a process is at work here, and forget why an earlier one failed."""
        (self.path / "error.json").unlink(missing_ok=True)
        self._noted = time.monotonic()
        before = _read_progress(self.path / "progress.json") or {"step": 0}
        write_json(self.path / "progress.json", before | {"pid": os.getpid(), "host": socket.gethostname()})

    def note_progress(self, progress: Any, now: bool = False) -> None:
        """Note how far it is, every few seconds, or now."""
        if now or time.monotonic() - self._noted > 2:
            self._noted = time.monotonic()
            where = {"pid": os.getpid(), "host": socket.gethostname()}
            write_json(self.path / "progress.json", progress._asdict() | where)

    def note_failure(self, error: Exception) -> None:
        """Note why the run could not go on."""
        text = "".join(traceback.format_exception(error))
        write_json(self.path / "error.json", {"error": f"{type(error).__name__}: {error}", "traceback": text})

    @staticmethod
    def status(path: Path) -> dict[str, Any]:
        """How a run stands, from its files: ``status`` and what is known beside it.

        The status is that of the result, or ``"failed"``, ``"running"``, ``"interrupted"`` or ``"waiting"``. A
        ``progress.json`` that cannot be used counts as none; a ``result.json`` that cannot be used is a ValueError.
        """
        error, progress = _read_error(path / "error.json"), _read_progress(path / "progress.json") or {}
        state = "interrupted" if progress or (path / "checkpoint.pt").exists() else "waiting"
        if progress and _alive(progress):
            state = "running"
        if (result := _read_result(path / "result.json")) is not None:  # the last to be read: a run may end meanwhile
            return result
        if error is not None:
            return {**progress, "status": "failed", "error": error}
        return {**progress, "status": state}

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint, in one stroke."""
        temporary = self.path / "checkpoint.tmp"
        torch.save(state, temporary)
        os.replace(temporary, self.path / "checkpoint.pt")

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint on the CPU, or None."""
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds
            over = (self.path / "result.json").exists()
            advice = "the run is over, its result stays" if over else "delete it to begin the run anew"
            raise ValueError(f"{path} cannot be read; {advice}") from error

    @property
    def metrics_path(self) -> Path:
        """Where the metrics are, one JSON object a line."""
        return self.path / "metrics.jsonl"

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics so far; what is no JSON object with a step is left out, a line cut off by a crash for example."""
        if not self.metrics_path.exists():
            return []
        lines = []
        for text in self.metrics_path.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                line = json.loads(text)
                if isinstance(line, dict) and _is_number(line.get("step")):
                    lines.append(line)
        return lines


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a ValueError that names the file if there is something else in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of the decoding or of JSON
        raise ValueError(f"{path} must be a JSON file, but cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _read(path: Path) -> dict[str, Any] | None:
    """A file, or None if it is not there; files are written in one stroke."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return None


def _read_result(path: Path) -> dict[str, Any] | None:
    """What came out of a run, or None if it is not over; a ValueError that names the file if it cannot be used."""
    result = _read(path)
    if result is not None:
        if not isinstance(result.get("status"), str):
            raise ValueError(f"{path} must have a text as status, got {result.get('status')!r}")
        _check_numbers(path, result)
    return result


def _read_progress(path: Path) -> dict[str, Any] | None:
    """How far a run has come, or None if the file is not there or cannot be used: a run can do without it."""
    try:
        progress = _read(path)
        if progress is not None:
            _check_numbers(path, progress)
    except (ValueError, OSError):
        return None
    return progress


def _check_numbers(path: Path, content: dict[str, Any]) -> None:
    for key in ("step", "steps", "best", "score", "seconds"):
        value = content.get(key, 0)
        if not _is_number(value) and not (value is None and key in ("best", "score")):  # None before an evaluation
            raise ValueError(f"{path} must have a number as {key}, got {value!r}")


def _is_number(value: Any) -> bool:
    """Whether this is a number that can be compared and shown; JSON has integers of any size."""
    return isinstance(value, float) or (_is_whole(value) and abs(value) < 2**63)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _read_error(path: Path) -> str | None:
    """Why a run failed, or None if it did not."""
    try:
        found = _read(path)
    except (ValueError, OSError) as error:
        return str(error)
    return None if found is None else str(found.get("error"))


def is_run(path: Path) -> bool:
    """Whether a directory holds a run; a ``config.json`` alone is somebody else's, a saved model for example."""
    return (path / "config.json").exists() and any((path / name).exists() for name in WRITTEN_BY_RUNS)


def runs_below(directory: Path) -> list[Path]:
    """The run directories in a directory; hidden ones are on their way out."""
    found = (path.parent for path in directory.glob("*/config.json"))
    return sorted(path for path in found if is_run(path) and not path.name.startswith("."))


def _alive(progress: dict[str, Any]) -> bool:
    """Whether the process that noted this is still there; on another machine one cannot know."""
    pid = progress.get("pid")
    if not _is_whole(pid) or not 0 < pid < 2**31:  # 0 and below are groups of processes, always there
        return False
    if progress.get("host") != socket.gethostname():
        return False
    if os.name != "posix":  # on Windows os.kill(pid, 0) ends the process
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _our_remains(file: Path) -> bool:
    """What a crash at the very start of a run can leave behind."""
    return file.name in ("progress.json", "progress.tmp", "environment.json", "environment.tmp", "config.tmp")


def write_json(path: Path, content: Any) -> None:
    """Write a file in one stroke: it is whole, or not there."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(temporary, path)


def first_difference(there: Any, here: Any, name: str = "") -> str | None:
    """In words, where two configurations part: ``training.lr is 0.01 there and 0.005 here``."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*there, *(key for key in here if key not in there)]:
            path = f"{name}.{key}" if name else key
            if key not in here or key not in there:
                return f"{path} is only {'there' if key in there else 'here'}"
            if found := first_difference(there[key], here[key], path):
                return found
        return None
    return None if there == here else f"{name} is {there} there and {here} here"
