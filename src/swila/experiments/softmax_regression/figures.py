"""Figures of softmax regression (figures 1C and S1): R² against state size, and against parameters."""

from __future__ import annotations

from pathlib import Path

from swila.experiments.catalogue import LOOKS
from swila.experiments.record import Record, lengths, trials
from swila.experiments.softmax_regression.summary import RegressionRow
from swila.plots import About, Point, budget_figure


def draw(record: Record[RegressionRow], out: Path, directory: Path | None = None) -> list[list[Path]]:
    """Draw figure 1C (the best configuration of each state size) and S1 (all configurations, and parameters)."""
    points = [
        Point(row["model"], row["size"], row["state"], row["parameters"], row["scores"], row["best_of_budget"])
        for row in record["rows"]
    ]
    shown = about(record)
    return [
        budget_figure(points, LOOKS, shown, out / "state-size", parameters=False, reference="attention"),
        budget_figure(points, LOOKS, shown, out / "all-configurations", reference="attention"),
    ]


def about(record: Record[RegressionRow]) -> About:
    """The caption of the figures: the task and the training budget."""
    task, runs = record["task"], record["runs"].values()
    return About(
        "Approximating softmax attention",
        [f"sequences of {task['length']:,} tokens with {task['dim']} dims", "R² on held-out test sequences"],
        [
            *lengths(runs, "sequences"),
            *trials(runs),
            "configuration and learning rate chosen by validation loss",
        ],
    )
