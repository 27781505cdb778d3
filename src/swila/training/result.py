"""The result of a run, as ``result.json`` holds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

from swila.training.json_files import is_number, read_json_if_present

REQUIRED = ("status", "metric", "best", "best_step", "steps", "device", "seconds")
NUMBERS = ("best", "best_step", "steps", "seconds", "final", "final_validation")
NONE_WITHOUT_A_SCORE = ("best", "final", "final_validation")


Status = Literal["finished", "solved", "stopped", "diverged"]


class RunResult(TypedDict):
    """The result of a run that has ended.

    Attributes:
        status: ``"finished"`` after all steps, ``"solved"`` at the score to stop at, ``"stopped"`` after too many
            evaluations without an improvement, or ``"diverged"`` if the loss is not finite.
        metric: Name of the score.
        best: Best score; of a run with a validation set the test score of the selected weights. None without any.
        best_step: Step of the evaluation with the best score, or with the lowest validation loss.
        steps: Number of updates.
        device: Device of the run.
        seconds: Duration of the run, summed over its sessions.
        final: Score of the last evaluation, on the test set; of runs without a validation set.
        final_validation: Score of the last evaluation, on the validation set.
        test: Metrics of the selected weights on the test set.
        validation: Metrics of the selected weights on the validation set.
    """

    status: Status
    metric: str
    best: float | None
    best_step: int
    steps: int
    device: str
    seconds: float
    final: NotRequired[float | None]
    final_validation: NotRequired[float | None]
    test: NotRequired[dict[str, float]]
    validation: NotRequired[dict[str, float]]


class Failure(TypedDict):
    """The outcome of a run that ended with an exception; the run can be resumed."""

    status: Literal["failed"]
    error: str


Outcome = RunResult | Failure
"""What became of a run of a sweep."""


def read_result(path: Path) -> RunResult | None:
    """Return the result in a file, or None if the file does not exist; ValueError if it is not a complete result."""
    result = read_json_if_present(path)
    if result is None:
        return None
    if not isinstance(result.get("status"), str):
        raise ValueError(f"{path} must have a text as status, got {result.get('status')!r}")
    for key in NUMBERS:
        value = result.get(key, 0)
        if not is_number(value) and not (value is None and key in NONE_WITHOUT_A_SCORE):
            raise ValueError(f"{path} must have a number as {key}, got {value!r}")
    for key in ("test", "validation"):
        if not isinstance(result.get(key, {}), dict):
            raise ValueError(f"{path} must have an object as {key}, got {result[key]!r}")
    if missing := _missing(result):
        raise ValueError(
            f"{path} must be a complete result, but lacks {', '.join(missing)}; delete it to resume the run"
        )
    return cast(RunResult, result)


def _missing(result: dict[str, Any]) -> list[str]:
    """Return the keys that a result lacks."""
    needed = list(REQUIRED)
    if "final_validation" not in result:
        needed.append("final")
    elif result.get("best") is not None:  # weights were selected on a validation set
        needed += ["test", "validation"]
    return [key for key in needed if key not in result]
