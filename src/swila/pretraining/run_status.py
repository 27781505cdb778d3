"""The status of a pretraining run, read from its directory alone: also that of a running one, from another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from swila.training.json_files import is_number, read_json
from swila.training.metrics import METRICS, read_last_metrics
from swila.training.run_directory import CHECKPOINTS, is_run
from swila.training.status import read_status

KIND = "pretraining"
PERPLEXITY = "validation/perplexity"
RECENT = 100  # lines of metrics that count for the present speed


def is_pretraining(path: Path) -> bool:
    """Whether a directory holds a pretraining run; False if its configuration cannot be read."""
    try:
        return is_run(path) and read_json(path / "config.json").get("kind") == KIND
    except (ValueError, OSError):
        return False


def read_run_status(path: Path) -> dict[str, Any]:
    """Return what :func:`swila.training.read_status` returns, with more about a pretraining run.

    Added where they are known: ``tokens_per_second`` and ``seconds``; for a run without a result ``step``, ``steps``,
    ``score`` and ``metric``; for a running one ``seconds_left``.
    """
    found = read_status(path)
    lines = read_last_metrics(path / METRICS)
    speed = tokens_per_second(lines)
    if speed is not None:
        found["tokens_per_second"] = speed
    if "best" in found:
        return found
    if "seconds" not in found and (times := _numbers(lines, "seconds")):
        found["seconds"] = times[-1]
    if "steps" not in found and (steps := planned_steps(read_json(path / "config.json"))) is not None:
        found["steps"] = steps
    if found["status"] != "running":  # the last progress may be seconds older than the end of the process
        found["step"] = max([int(found.get("step", 0)), *_steps_of(path), *(int(line["step"]) for line in lines[-1:])])
    if found.get("score") is None and (scores := _numbers(lines, PERPLEXITY)):
        found |= {"score": scores[-1], "metric": "perplexity"}
    if found["status"] == "running" and (pace := _seconds_per_step(lines)) is not None and "steps" in found:
        found["seconds_left"] = pace * max(found["steps"] - found["step"], 0)
    return found


def tokens_per_second(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the median speed in the last lines of metrics, None if there is none."""
    speeds = _numbers(lines, "tokens_per_second")[-RECENT:]
    return median(speeds) if speeds else None


def planned_steps(config: Mapping[str, Any]) -> int | None:
    """Return the number of updates in the configuration of a run, None if it has none."""
    recipe = config.get("recipe")
    schedule = recipe.get("schedule") if isinstance(recipe, dict) else None
    steps = schedule.get("steps") if isinstance(schedule, dict) else None
    return int(steps) if is_number(steps) and steps is not None else None


def _numbers(lines: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [line[name] for line in lines if is_number(line.get(name))]


def _steps_of(path: Path) -> list[int]:
    """Return the steps of the checkpoints of a run."""
    names = (each.name.removeprefix("step-") for each in (path / CHECKPOINTS).glob("step-*"))
    return [int(name) for name in names if name.isdecimal()]


def _seconds_per_step(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the time of an update over the last lines, with validation and checkpoints; None if it is not known."""
    timed = [line for line in lines if is_number(line.get("seconds"))][-RECENT:]
    if len(timed) < 2 or timed[-1]["step"] <= timed[0]["step"]:
        return None
    return (timed[-1]["seconds"] - timed[0]["seconds"]) / (timed[-1]["step"] - timed[0]["step"])
