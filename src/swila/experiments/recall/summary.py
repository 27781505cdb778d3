"""The table of a recall experiment: best and mean accuracy of every model and size."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from swila.experiments.choice import grouped
from swila.experiments.record import BaseRow, RunRecord


class RecallRow(BaseRow):
    """The runs of one model, size, variant and length.

    Attributes:
        hidden_size: Width of the model.
        layers: Number of blocks.
        variant: Differences from the preset.
        length: Planned number of steps in words, where rows differ in it; otherwise empty.
        planned_steps: Planned number of steps.
        best: Best score of all runs, None if none is finished.
        lrs: Learning rates of the finished runs.
        solved: Number of runs that solved the task.
        names: Names of the runs.
        best_run: Name of the run with the best score.
        best_step: Step at which it had it.
        unfinished: Status of each unfinished run, by name.
    """

    hidden_size: int
    layers: int
    variant: str
    length: str
    planned_steps: int
    best: float | None
    lrs: list[float]
    solved: int
    names: list[str]
    best_run: str | None
    best_step: int | None
    unfinished: dict[str, str]


def summarize(runs: Sequence[RunRecord]) -> list[RecallRow]:
    """A row for each model, size, variant and length: best and mean accuracy, and how many runs solved the task.

    As in the paper, the accuracy of a run is the best of its evaluations on the test set. The mean is over learning
    rates, each of them with the mean over its seeds. Runs of different lengths are in different rows.
    """
    groups = grouped(runs, row_of)
    several = len({planned for *_, planned in groups}) > 1
    rows: list[RecallRow] = []
    for (model, hidden_size, layers, variant, planned), members in groups.items():
        scored = [(score, run) for run in members if (score := run.get("best")) is not None]
        best_score, best = max(scored, key=lambda pair: pair[0], default=(None, None))
        rows.append(
            {
                "model": model,
                "hidden_size": hidden_size,
                "layers": layers,
                "variant": variant,
                "length": f"{planned:,}" if several else "",
                "planned_steps": planned,
                "state": members[0]["state"],
                "parameters": members[0]["parameters"],
                "best": best_score,
                "mean": mean_over_rates([(run["lr"], score) for score, run in scored]),
                "lrs": sorted({run["lr"] for _, run in scored}),
                "solved": sum(run["status"] == "solved" for _, run in scored),
                "runs": len(members),
                "names": [run["name"] for run in members],
                "best_run": best["name"] if best else None,
                "best_step": best["best_step"] if best else None,
                "unfinished": {run["name"]: run["status"] for run in members if "best" not in run},
                "diverged": [run["name"] for _, run in scored if run["status"] == "diverged"],
            }
        )
    return rows


def headline(rows: Sequence[RecallRow]) -> list[RecallRow]:
    """The rows without variants; of a model and size with several lengths, the longest."""
    plain = sorted((row for row in rows if not row["variant"]), key=lambda row: row["planned_steps"])
    longest = {(row["model"], row["layers"], row["hidden_size"]): row for row in plain}
    return [row for row in rows if any(row is kept for kept in longest.values())]


def row_of(run: RunRecord) -> tuple[str, int, int, str, int]:
    """The row that a run belongs to: model, width, depth, variant and planned number of steps."""
    return run["model"], run["hidden_size"], run["num_layers"], run.get("variant", ""), run.get("planned_steps", 0)


def mean_over_rates(runs: Sequence[tuple[float, float]]) -> float | None:
    """The mean over learning rates, each with the mean over its seeds; None for no runs.

    Args:
        runs: Learning rate and score of each run.
    """
    by_rate: dict[float, list[float]] = {}
    for lr, score in runs:
        by_rate.setdefault(lr, []).append(score)
    return fmean(fmean(scores) for scores in by_rate.values()) if by_rate else None
