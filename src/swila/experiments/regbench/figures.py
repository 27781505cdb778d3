"""Figure 2b of the paper, accuracy against the number of training automata; and how the models got there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swila.experiments.experiment import lengths
from swila.experiments.regbench.runs import MODELS
from swila.plots import progress_figure, sample_efficiency


def draw(record: dict[str, Any], out: Path, directory: Path | None = None) -> list[list[Path]]:
    """Accuracy, total variation, and validation accuracy over the epochs."""
    curves: dict[str, dict[str, dict[int, list[float]]]] = {"accuracy": {}, "tv": {}}
    for row in record["rows"]:
        curves["accuracy"].setdefault(row["model"], {})[row["train_examples"]] = row["scores"]
        curves["tv"].setdefault(row["model"], {})[row["train_examples"]] = [test["tv"] for test in row["tests"]]
    lines = {metric: {name: found[metric] for name, found in record["yardsticks"].items()} for metric in curves}
    panels: dict[str, dict[str, list[list[tuple[int, float]]]]] = {}
    shown = {name for row in record["rows"] for name in (*row["chosen"], *row["unfinished"])}
    runs = [run for name, run in record["runs"].items() if name in shown and run["curve"]]
    latest = max((epoch for row in record["rows"] for epoch in row["best_epochs"]), default=0)
    for run in sorted(runs, key=lambda run: run["train_examples"]):
        panel = panels.setdefault(f"{run['train_examples']:,} automata", {})
        epochs = [(step / run["steps_per_epoch"], score) for step, score in run["curve"]]
        if latest:  # what follows the chosen weights is the same everywhere: training data are learnt by heart
            epochs = [(epoch, score) for epoch, score in epochs if epoch <= 3 * latest]
        panel.setdefault(run["model"], []).append(epochs)
    about = notes(record, [run for name, run in record["runs"].items() if name in shown])
    tv = "total variation", "lower"
    return [
        sample_efficiency(curves["accuracy"], MODELS, lines["accuracy"], "RegBench", out / "accuracy", notes=about),
        sample_efficiency(curves["tv"], MODELS, lines["tv"], "RegBench", out / "total-variation", *tv, notes=about),
        progress_figure(
            panels, MODELS, "epochs", "validation accuracy", "RegBench: training", out / "progress", notes=about
        ),
    ]


def notes(record: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[str]:
    """The size of task and models, how long they were trained, and how many runs ended before."""
    task, sizes = record["task"], {(run["num_layers"], run["hidden_size"]) for run in runs}
    ranges = (f"{what} {'–'.join(map(str, task[what]))}" for what in ("states", "alphabet"))
    told = [", ".join(ranges), *(f"{layers} layers of width {width}" for layers, width in sorted(sizes))]
    told += lengths(runs, "automata")[-1:]
    if early := sum(run["status"] == "stopped" for run in runs):
        told.append(f"{early} of {len(runs)} runs ended before, without a lower validation loss for some epochs")
    return told
