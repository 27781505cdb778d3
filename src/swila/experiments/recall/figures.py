"""Figures of a recall experiment: accuracy against state size (figures 2a, S2), and against training steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swila.experiments.catalogue import CATALOGUE, LOOKS, has_cache
from swila.experiments.catalogue import title as title_of
from swila.experiments.recall.summary import RecallRow, headline
from swila.experiments.record import Record, RunRecord, lengths, trials
from swila.plots import (
    About,
    Curve,
    Learning,
    Plateau,
    StateSizeLine,
    StateSizePoint,
    accuracy_curves,
    state_size_figure,
)

TUNED = "temporal-swila"
EXPLORED = (
    "settings that the paper leaves open (initial weights, bias of the temporal gates, convolution, weight decay) were "
    f"explored on {title_of(TUNED)} alone, by test accuracy on CDAR"
)


def draw(record: Record[RecallRow], out: Path, title: str, plateau: Plateau | None = None) -> list[list[Path]]:
    """Draw accuracy against state size, if a model has several sizes, and against steps, if there are curves."""
    figures = []
    if any(len(line.points) > 1 for line in _lines(record)):
        figures.append(draw_state_sizes(record, out, title, plateau))
    if any(run.get("curve") for run in record["runs"].values()):
        figures.append(draw_accuracy(record, out, title, plateau))
    return figures


def draw_state_sizes(record: Record[RecallRow], out: Path, title: str, plateau: Plateau | None) -> list[Path]:
    """Figures 2a and S2: best and mean accuracy over learning rates and seeds."""
    shown = [record["runs"][name] for row in headline(record["rows"]) for name in row["names"]]
    return state_size_figure(_lines(record), LOOKS, plateau, about(record, shown, title), out / "state-size")


def _lines(record: Record[RecallRow]) -> list[StateSizeLine]:
    """The sizes of every model and depth that have finished runs."""
    lines: dict[tuple[str, int], StateSizeLine] = {}
    for row in sorted(headline(record["rows"]), key=lambda row: (row["layers"], row["state"])):
        if row["mean"] is not None:
            model, layers = row["model"], row["layers"]
            line = lines.setdefault((model, layers), StateSizeLine(model, layers, has_cache(model), points=[]))
            scores = [score for name in row["names"] if (score := record["runs"][name].get("best")) is not None]
            line.points.append(StateSizePoint(row["state"], scores, row["mean"]))
    order = {model: place for place, model in enumerate(CATALOGUE)}
    return sorted(lines.values(), key=lambda line: order.get(line.model, len(order)))


def draw_accuracy(record: Record[RecallRow], out: Path, title: str, plateau: Plateau | None) -> list[Path]:
    """Test accuracy against steps, a panel for each model width."""
    every = list(record["runs"].values())
    runs = [run for run in every if not run.get("variant")] or every
    panels: dict[str, list[Learning]] = {}
    for width in sorted({run["hidden_size"] for run in runs}):
        members = [run for run in runs if run["hidden_size"] == width]
        curves: dict[tuple[str, int], list[Curve]] = {}
        for run in members:
            curves.setdefault((run["model"], run["num_layers"]), []).append(run.get("curve", []))
        recurrent = [run for run in members if not has_cache(run["model"])]
        each = " per layer" if any(run["num_layers"] > 1 for run in recurrent) else ""
        state = f", state {recurrent[0]['state'] // recurrent[0]['num_layers']:,}{each}" if recurrent else ""
        panels[f"width {width}{state}"] = [Learning(*key, found) for key, found in curves.items()]
    return accuracy_curves(panels, LOOKS, plateau, about(record, runs, title), out / "accuracy")


def about(record: Record[RecallRow], runs: Sequence[RunRecord], title: str) -> About:
    """The caption of a figure of some runs: the task and the training budget."""
    models = {run["model"] for run in runs}
    training = [*lengths(runs, "examples"), *trials(runs)]
    if unfinished := sum("best" not in run for run in runs):
        training.append(f"{unfinished} of {len(runs)} runs are unfinished")
    if TUNED in models and len(models) > 1:
        training.append(EXPLORED)
    return About(title, task(record), training)


def task(record: Record[RecallRow]) -> list[str]:
    """Size of the task in words, beside what the title says."""
    return [
        f"vocabulary of {record['task']['vocab_size']:,} tokens",
        "accuracy of a run: its best evaluation on the test examples",
    ]
