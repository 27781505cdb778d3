"""Pictures of a recall experiment: accuracy against state size, and how models learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swila.experiments.recall import CACHES, MODELS, headline
from swila.plots import StateSizeLine, StateSizePoint, accuracy_curves, state_size_figure


def draw(record: dict[str, Any], out: Path, directory: Path | None = None) -> list[list[Path]]:
    """Both of them; the first needs a model with several state sizes."""
    lines = _lines(record)
    sized = [draw_state_sizes(record, out)] if any(len(line.points) > 1 for line in lines) else []
    return [*sized, draw_accuracy(record, out)]


def draw_state_sizes(record: dict[str, Any], out: Path) -> list[Path]:
    """Figures 2a and S2: best and mean accuracy over learning rates and seeds."""
    return state_size_figure(_lines(record), MODELS, record.get("plateau"), title(record), out / "state-size")


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
    """Test accuracy against steps, a panel for each model width and depth."""
    panels: dict[str, dict[str, list[list[tuple[int, float]]]]] = {}
    runs = [run for run in record["runs"].values() if not run.get("variant")] or list(record["runs"].values())
    for width, depth in sorted({(run["hidden_size"], run["num_layers"]) for run in runs}):
        members = [run for run in runs if (run["hidden_size"], run["num_layers"]) == (width, depth)]
        recurrent = {run["state"] for run in members if run["model"] not in CACHES}
        state = f"state {min(recurrent):,}, " if recurrent else ""
        layers = "one layer" if depth == 1 else f"{depth} layers"
        panel = panels.setdefault(f"{state}width {width}, {layers}", {})
        for run in members:
            panel.setdefault(run["model"], []).append([tuple(point) for point in run["curve"]])
    return accuracy_curves(panels, MODELS, record.get("plateau"), title(record), out / "accuracy")


def title(record: dict[str, Any]) -> str:
    """The task, in a few words."""
    task = record["task"]
    if "num_contexts" in task:
        return f"CDAR: {task['num_contexts']} contexts of {task['num_keys']} keys, length {task['length']:,}"
    return f"MQAR: {task['num_pairs']} pairs, length {task['length']:,}"
