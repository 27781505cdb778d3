"""Figures 1C and S1 of the paper: R² against state size, and against parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from swila.experiments.experiment import lengths
from swila.experiments.softmax_regression.runs import MODELS
from swila.plots import Point, budget_figure


def draw(record: dict[str, Any], out: Path, directory: Path | None = None) -> list[list[Path]]:
    """Figure 1C (state size, the best configuration of each budget) and S1 (all of them, and parameters)."""
    points = [
        Point(row["model"], row["size"], row["state"], row["parameters"], row["scores"], row["best_of_budget"])
        for row in record["rows"]
    ]
    task = record["task"]
    title = "Approximating softmax attention"
    notes = [f"{task['dim']} dims, length {task['length']:,}", *lengths(record["runs"].values(), "sequences")]
    notes.append("configuration and learning rate chosen by validation loss")
    return [
        budget_figure(points, MODELS, title, out / "state-size", parameters=False, notes=notes),
        budget_figure(points, MODELS, title, out / "all-configurations", notes=notes),
    ]
