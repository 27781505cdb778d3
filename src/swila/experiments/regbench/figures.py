"""Figures of RegBench: accuracy against the number of training automata (figure 2b), and learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swila.experiments.catalogue import LOOKS
from swila.experiments.record import Record, RunRecord, lengths, trials
from swila.experiments.regbench.summary import RegBenchRow
from swila.plots import About, Curve, progress_figure, sample_efficiency

ACCURACY = "accuracy: share of predicted symbols that the automaton allows"
DISTANCE = "total variation: distance between the predicted and the automaton's distribution of the next symbol"


def draw(record: Record[RegBenchRow], out: Path, directory: Path | None = None) -> list[list[Path]]:
    """Draw accuracy, total variation, and validation accuracy over the epochs."""
    accuracy: dict[str, dict[int, list[float]]] = {}
    distance: dict[str, dict[int, list[float]]] = {}
    for row in record["rows"]:
        accuracy.setdefault(row["model"], {})[row["train_examples"]] = row["scores"]
        distance.setdefault(row["model"], {})[row["train_examples"]] = [test["tv"] for test in row["tests"]]
    yardsticks = record["yardsticks"]
    names = {name for row in record["rows"] for name in (*row["chosen"], *row["unfinished"])}
    shown = [run for name, run in record["runs"].items() if name in names]
    return [
        sample_efficiency(
            accuracy,
            LOOKS,
            {name: found["accuracy"] for name, found in yardsticks.items()},
            about(record, shown, "RegBench"),
            out / "accuracy",
        ),
        sample_efficiency(
            distance,
            LOOKS,
            {name: found["tv"] for name, found in yardsticks.items()},
            about(record, shown, "RegBench", DISTANCE),
            out / "total-variation",
            score="total variation",
            better="lower",
        ),
        progress_figure(
            _curves(record, shown),
            LOOKS,
            "epochs",
            "validation accuracy",
            about(record, shown, "RegBench: training"),
            out / "progress",
        ),
    ]


def _curves(record: Record[RegBenchRow], runs: Sequence[RunRecord]) -> dict[str, dict[str, list[Curve]]]:
    """Curves by training set and model, up to three times the latest epoch whose weights were chosen.

    What follows is the same for all models: they overfit.
    """
    latest = max((epoch for row in record["rows"] for epoch in row["best_epochs"]), default=0)
    panels: dict[str, dict[str, list[Curve]]] = {}
    for run in sorted(runs, key=lambda run: run["train_examples"]):
        epochs = [(step / run["steps_per_epoch"], score) for step, score in run.get("curve", [])]
        kept = [(epoch, score) for epoch, score in epochs if not latest or epoch <= 3 * latest]
        if kept:
            panel = panels.setdefault(f"{run['train_examples']:,} automata", {})
            panel.setdefault(run["model"], []).append(kept)
    return panels


def about(record: Record[RegBenchRow], runs: Sequence[RunRecord], title: str, score: str = ACCURACY) -> About:
    """The caption of a figure of some runs: the task and the training budget."""
    task, sizes = record["task"], {(run["num_layers"], run["hidden_size"]) for run in runs}
    low, high = ({what: task[what][end] for what in ("states", "alphabet")} for end in (0, 1))
    size = [
        f"automata of {low['states']}–{high['states']} states and {low['alphabet']}–{high['alphabet']} symbols",
        score,
        "test and validation automata are held out",
    ]
    training = [f"{layers} layers of width {width}" for layers, width in sorted(sizes)]
    training += [*(f"up to {length}" for length in lengths(runs, "automata")[-1:]), *trials(runs)]
    several = len({run["lr"] for run in runs}) > 1
    training.append(f"{'learning rate and weights' if several else 'weights'} chosen by validation loss")
    if early := sum(run["status"] == "stopped" for run in runs):
        training.append(f"{early} of {len(runs)} runs stopped early, without a lower validation loss for some epochs")
    return About(title, size, training)
