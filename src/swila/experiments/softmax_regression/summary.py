"""The table of softmax regression."""

from __future__ import annotations

from collections.abc import Sequence

from swila.experiments.choice import ChosenRow, choose_by_validation, grouped
from swila.experiments.record import RunRecord


class RegressionRow(ChosenRow):
    """The runs of one model and configuration.

    Attributes:
        size: Heads and mixtures, ``H2J4`` or ``H8``.
        best_of_budget: Whether it is the configuration of SwiLA with the lowest validation loss at its state size.
    """

    size: str
    best_of_budget: bool


def summarize(runs: Sequence[RunRecord]) -> list[RegressionRow]:
    """A row for each model and configuration."""
    rows: list[RegressionRow] = [
        {**choose_by_validation(members, f"{model} {size}"), "size": size, "best_of_budget": False}
        for (model, size), members in grouped(runs, lambda run: (run["model"], run["size"])).items()
    ]
    best: dict[int, tuple[float, RegressionRow]] = {}
    for row in rows:
        loss = row["validation_loss"]
        if row["model"] == "swila" and loss is not None:
            best[row["state"]] = min(best.get(row["state"], (loss, row)), (loss, row), key=lambda pair: pair[0])
    for _, row in best.values():
        row["best_of_budget"] = True
    return rows
