"""Pictures of a recall experiment: accuracy against state size, and how models learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swila.experiments.experiment import lengths
from swila.experiments.recall.runs import CACHES, MODELS, headline
from swila.plots import Learning, StateSizeLine, StateSizePoint, accuracy_curves, state_size_figure

EXPLORED = (
    "open points (initial weights, bias of the temporal gates, convolution, weight decay) were explored on Temporal "
    "SwiLA alone, by test accuracy on CDAR"
)


def draw(record: dict[str, Any], out: Path, directory: Path | None = None) -> list[list[Path]]:
    """Both of them; the first needs a model with several state sizes."""
    lines = _lines(record)
    sized = [draw_state_sizes(record, out)] if any(len(line.points) > 1 for line in lines) else []
    return [*sized, draw_accuracy(record, out)]


def draw_state_sizes(record: dict[str, Any], out: Path) -> list[Path]:
    """Figures 2a and S2: best and mean accuracy over learning rates and seeds."""
    shown = [record["runs"][name] for row in headline(record["rows"]) for name in row["names"]]
    about = notes(record, shown)
    return state_size_figure(_lines(record), MODELS, record.get("plateau"), title(record), out / "state-size", about)


def _lines(record: dict[str, Any]) -> list[StateSizeLine]:
    """Of every model and depth its sizes, as far as runs are over."""
    lines: dict[tuple[str, int], StateSizeLine] = {}
    for row in sorted(headline(record["rows"]), key=lambda row: (row["layers"], row["state"])):
        if row["best"] is not None:
            key = row["model"], row["layers"]
            line = lines.setdefault(key, StateSizeLine(*key, is_cache=row["model"] in CACHES, points=[]))
            scores = [score for name in row["names"] if (score := record["runs"][name].get("best")) is not None]
            line.points.append(StateSizePoint(row["state"], scores, row["mean"]))
    order = {model: place for place, model in enumerate(MODELS)}
    return sorted(lines.values(), key=lambda line: order.get(line.model, len(order)))


def draw_accuracy(record: dict[str, Any], out: Path) -> list[Path]:
    """Test accuracy against steps, a panel for each model width."""
    panels: dict[str, list[Learning]] = {}
    runs = [run for run in record["runs"].values() if not run.get("variant")] or list(record["runs"].values())
    for width in sorted({run["hidden_size"] for run in runs}):
        members = [run for run in runs if run["hidden_size"] == width]
        found: dict[tuple[str, int], list[list[tuple[int, float]]]] = {}
        for run in members:
            key = run["model"], run["num_layers"]
            found.setdefault(key, []).append([tuple(point) for point in run["curve"]])
        models = [Learning(*key, curves) for key, curves in found.items()]
        recurrent = [run for run in members if run["model"] not in CACHES]
        each = " a layer" if any(run["num_layers"] > 1 for run in recurrent) else ""
        state = f", state {recurrent[0]['state'] // recurrent[0]['num_layers']:,}{each}" if recurrent else ""
        panels[f"width {width}{state}"] = models
    about = notes(record, runs)
    if unfinished := sum(run.get("best") is None for run in runs):
        about.append(f"{unfinished} of {len(runs)} runs are not finished")
    return accuracy_curves(panels, MODELS, record.get("plateau"), title(record), out / "accuracy", about)


def notes(record: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[str]:
    """The size of the task, how long models were trained, and what was tried for one of them alone."""
    models = {run["model"] for run in runs}
    told = [f"vocabulary {record['task']['vocab_size']:,}", *lengths(runs, "examples")]
    return [*told, EXPLORED] if "temporal-swila" in models and len(models) > 1 else told


def title(record: dict[str, Any]) -> str:
    """The task, in a few words."""
    task = record["task"]
    if "num_contexts" in task:
        return f"CDAR: {task['num_contexts']} contexts of {task['num_keys']} keys, length {task['length']:,}"
    return f"MQAR: {task['num_pairs']} pairs, length {task['length']:,}"
