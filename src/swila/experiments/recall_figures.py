"""Pictures of a recall experiment: accuracy against state size, and how models learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swila.experiments.recall import CACHES, MODELS
from swila.plots import StateSizeLine, accuracy_curves, state_size_figure


def draw(record: dict[str, Any], out: Path, directory: Path | None = None) -> list[list[Path]]:
    """Both of them; the first needs several state sizes."""
    several = len({row["state"] for row in record["rows"]}) > 1
    return [*([draw_state_sizes(record, out)] if several else []), draw_accuracy(record, out)]


def draw_state_sizes(record: dict[str, Any], out: Path) -> list[Path]:
    """Figures 2a and S2: best and mean accuracy over learning rates and seeds, for the preset as it is."""
    rows = [row for row in record["rows"] if row["best"] is not None and not row.get("variant")]
    lines: dict[tuple[str, int], StateSizeLine] = {}
    for row in sorted(rows, key=lambda row: row["state"]):
        key = row["model"], row["layers"]
        line = lines.setdefault(key, StateSizeLine(*key, is_cache=row["model"] in CACHES, points=[]))
        runs = [run for run in record["runs"].values() if _is_of(run, row) and run.get("best") is not None]
        line.points.append((row["state"], [(run["lr"], run["best"]) for run in runs]))
    ordered = [lines[key] for key in sorted(lines, key=lambda key: (list(MODELS).index(key[0]), key[1]))]
    return state_size_figure(ordered, MODELS, record.get("plateau"), title(record), out / "state-size")


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


def _is_of(run: dict[str, Any], row: dict[str, Any]) -> bool:
    return (run["model"], run["hidden_size"], run["num_layers"], run.get("variant", "")) == (
        row["model"],
        row["hidden_size"],
        row["layers"],
        row.get("variant", ""),
    )
