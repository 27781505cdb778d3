"""Tables and figures of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from swila.experiments.experiment import Experiment
    from swila.experiments.record import Record


def show(console: Console, experiment: Experiment[Any], record: Record[Any]) -> None:
    """Print the table of an experiment with its best row highlighted."""
    from rich.table import Table

    from swila.experiments.catalogue import title

    rows = record["rows"]
    key = "best" if any("best" in row for row in rows) else "mean"
    top = max((row[key] for row in rows if row[key] is not None), default=None)
    caption = experiment.caption(record)
    table = Table(title="", box=None, caption=caption, caption_justify="left")
    table.add_column("model", header_style="bold")
    columns = [column for column in experiment.columns if any(column.cell(row) for row in rows)]
    for column in columns:
        table.add_column(column.heading, header_style="bold", justify="right", overflow="fold")
    for row in rows:
        style = "bold green" if top is not None and row[key] == top else None
        cells = [column.cell(row) for column in columns]
        table.add_row(title(row["model"]), *cells, style=style)
    console.print(table)
    _warn(console, rows)


def _warn(console: Console, rows: list[dict[str, Any]]) -> None:
    for what, key in (("diverged", "diverged"), ("unfinished or failed", "unfinished")):
        names = [name for row in rows for name in row[key]]
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            console.print(f"[red]{what}[/]: {names[0]}{more}")


def why_no_figures() -> str | None:
    """Return why figures cannot be drawn and what to install, or None if they can."""
    from importlib.util import find_spec

    return None if find_spec("matplotlib") else "they need matplotlib (pip install 'swila[plots]')"


def draw(console: Console, experiment: Experiment[Any], record: Record[Any], out: Path, directory: Path | None) -> None:
    """Draw the figures and print their paths."""
    for paths in experiment.draw(record, out, directory):
        console.print(f"figure in {paths[0]} (and {paths[1].name})", markup=False)
