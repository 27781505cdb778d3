"""The record of pretraining runs: their configurations, curves and results, as ``results.json`` holds them.

Tables and figures are made from a record alone, so records of several machines can be joined.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from swila.plots.smoothing import thin
from swila.pretraining.run_status import KIND, is_pretraining, planned_steps, read_run_status, tokens_per_second
from swila.training import RunDirectory
from swila.training.environments import distinct
from swila.training.json_files import first_difference, is_number
from swila.training.run_directory import is_run, runs_below

LOSS, PERPLEXITY, ROUTING = "train/loss", "validation/perplexity", "routing/"
OF_A_LAYER = re.compile(r"routing/(\d+)/(\w+)")
MOST_OF_A_LAYER = 250  # points that a record keeps of a curve of one layer
Curve = list[tuple[float, float]]  # (tokens, value); lists of two numbers in a file
logger = logging.getLogger("swila")


class RunRecord(TypedDict):
    """A pretraining run with what came out of it so far.

    Attributes:
        name: Name of the run, that of its directory.
        recipe: Name of the recipe.
        config: Part of the recipe that identifies the run.
        tokens: Identity of the data: digest of the tokenizer, size of the vocabulary, fingerprint.
        environment: Hardware, versions and commit at the start of the run.
        status: Status, as in ``swila status``.
        error: Why the run failed.
        step: Number of updates so far.
        steps: Number of planned updates.
        tokens_per_step: Number of tokens of an update.
        tokens_per_second: Speed at the end of the run, or now.
        not_finite: Number of logged losses that are not finite.
        curves: Metrics against tokens, by name: ``train/loss``, ``validation/perplexity`` and ``routing/...``. Those
            of single layers are thinned.
        result: Result of a finished run.
    """

    name: str
    recipe: str
    config: dict[str, Any]
    tokens: dict[str, Any]
    environment: dict[str, Any]
    status: str
    error: NotRequired[str]
    step: int
    steps: int
    tokens_per_step: int
    tokens_per_second: float | None
    not_finite: int
    curves: dict[str, Curve]
    result: dict[str, Any] | None


class Record(TypedDict):
    """Several pretraining runs.

    Attributes:
        kind: ``"pretraining"``.
        environment: Environment of the first run.
        other_environments: Those of the other runs, where they differ.
        runs: Runs by name.
    """

    kind: str
    environment: dict[str, Any]
    other_environments: NotRequired[list[dict[str, Any]]]
    runs: dict[str, RunRecord]


def pretraining_runs(path: Path) -> list[Path]:
    """Return the pretraining runs that a directory is or holds; ValueError if it holds other runs as well."""
    if is_run(path):
        return [path] if is_pretraining(path) else []
    below = runs_below(path)
    found = [run for run in below if is_pretraining(run)]
    others = [run.name for run in below if run not in found and _is_readable(run)]
    if found and others:
        raise ValueError(
            f"runs must be of pretraining or of an experiment, but {path} holds both: "
            f"{found[0].name} is a pretraining run, {others[0]} is not"
        )
    return found


def read_record(paths: Iterable[Path]) -> Record:
    """Return the record of run directories; a run that cannot be read is left out with a warning.

    Runs whose directories have one name are named with the directory above as well.
    """
    unique = list({path.resolve(): None for path in paths})
    names = [path.name for path in unique]
    found = {}
    for path in unique:
        name = path.name if names.count(path.name) == 1 else f"{path.parent.name}/{path.name}"
        try:
            found[name] = _read_run(path, name)
        except (KeyError, TypeError, ValueError, OSError) as error:
            logger.warning("%s is left out: it cannot be read (%s: %s)", path, type(error).__name__, error)
    if not found:
        raise ValueError(f"runs must hold a pretraining run that can be read, got {', '.join(map(str, unique))}")
    return _record(found)


def check_record(content: dict[str, Any], path: Path) -> Record:
    """Return the content of a results file as a record; ValueError if it is not one of this version."""
    needed = RunRecord.__annotations__.keys() - {"error"}
    runs = content.get("runs")
    if (
        not isinstance(runs, dict)
        or not runs
        or not all(isinstance(r, dict) and needed <= r.keys() for r in runs.values())
    ):
        raise ValueError(f"{path} must hold pretraining runs of this version of swila, got those of another one")
    return cast(Record, content)


def join(records: Sequence[Record]) -> Record:
    """Return one record out of several. Of a run that is in several of them, the one with most updates counts."""
    runs: dict[str, RunRecord] = {}
    for record in records:
        for name, run in record["runs"].items():
            if name not in runs:
                runs[name] = run
                continue
            for key in ("config", "tokens"):
                if difference := first_difference(runs[name].get(key), run.get(key), key):
                    raise ValueError(f"runs must have different names, but there are two called {name} ({difference})")
            if run["step"] > runs[name]["step"]:
                runs[name] = run
    return _record(runs)


def layers_of(run: RunRecord) -> dict[int, dict[str, Curve]]:
    """Return the routing diagnostics of each layer, by its index and the name of the diagnostic."""
    found: dict[int, dict[str, Curve]] = {}
    for name, curve in run["curves"].items():
        if (parts := OF_A_LAYER.fullmatch(name)) and curve:
            found.setdefault(int(parts[1]), {})[parts[2]] = curve
    return found


def _record(runs: dict[str, RunRecord]) -> Record:
    first, *more = distinct(run["environment"] for run in runs.values())
    record: Record = {"kind": KIND, "environment": first, "runs": runs}
    if more:
        record["other_environments"] = more
    return record


def _read_run(path: Path, name: str) -> RunRecord:
    own = RunDirectory(path)
    config, lines, status = own.config, own.metrics(), read_run_status(path)
    recipe = config["recipe"]
    losses = [line[LOSS] for line in lines if is_number(line.get(LOSS))]
    result = own.result
    record: RunRecord = {
        "name": name,
        "recipe": config["name"],
        "config": recipe,
        "tokens": config["tokens"],
        "environment": own.environment,
        "status": status["status"],
        "step": int(status["steps"] if result is not None else status["step"]),
        "steps": planned_steps(config) or int(status["steps"]),
        "tokens_per_step": recipe["data"]["length"] * recipe["data"]["batch_size"],
        "tokens_per_second": tokens_per_second(lines),
        "not_finite": sum(not math.isfinite(loss) for loss in losses),
        "curves": _curves(lines),
        "result": None if result is None else dict(result),
    }
    if "error" in status:
        record["error"] = str(status["error"])
    return record


def _curves(lines: Sequence[dict[str, Any]]) -> dict[str, Curve]:
    """Return the metrics that figures show, without values that are not finite."""
    curves: dict[str, Curve] = {}
    for line in lines:
        for name, value in line.items():
            if (name in (LOSS, PERPLEXITY) or name.startswith(ROUTING)) and is_number(value) and math.isfinite(value):
                curves.setdefault(name, []).append((line["tokens"], value))
    for name, curve in curves.items():
        kept = thin(curve, MOST_OF_A_LAYER) if OF_A_LAYER.fullmatch(name) else curve
        curves[name] = [(round(tokens), float(f"{value:.6g}")) for tokens, value in kept]
    return curves


def _is_readable(path: Path) -> bool:
    try:
        return bool(RunDirectory(path).config)
    except (ValueError, OSError):
        return False
