"""Columns of the table of a recall experiment."""

from __future__ import annotations

from swila.experiments.cells import count, fraction
from swila.experiments.experiment import Column
from swila.experiments.recall.summary import RecallRow

CAPTION = "test accuracy, best and mean over learning rates and seeds"
COLUMNS: tuple[Column[RecallRow], ...] = (
    Column("width", lambda row: str(row["hidden_size"])),
    Column("layers", lambda row: str(row["layers"])),
    Column("set", lambda row: row["variant"]),
    Column("steps", lambda row: row["length"]),
    Column("state", lambda row: count(row["state"])),
    Column("parameters", lambda row: count(row["parameters"])),
    Column("best", lambda row: fraction(row["best"])),
    Column("mean", lambda row: fraction(row["mean"])),
    Column("solved", lambda row: f"{row['solved']}/{row['runs']}"),
)
