"""``swila status``: how the runs of a sweep stand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from swila.cli.options import one_line_errors

COLOURS = {"solved": "green", "finished": "green", "running": "cyan", "diverged": "red", "failed": "red"}


def status(
    runs: Annotated[list[Path], typer.Argument(help="Directories of swila run.")],
    only: Annotated[
        list[str] | None,
        typer.Option(help="Show these alone: finished, solved, diverged, failed, running, interrupted, waiting."),
    ] = None,
) -> None:
    """Show which runs are finished, running, waiting, or failed, and why.

    Reads the run directories alone: it may be called while the runs are under way, from another terminal.
    """
    from collections import Counter

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from swila.training import RunDirectory

    console = Console()
    with one_line_errors():
        paths = [path.parent for root in runs for path in _found(root)]
    states = [(path.name, RunDirectory.status(path)) for path in paths]
    table = Table(box=None)
    for heading in ("run", "status", "step", "score", "time"):
        table.add_column(heading, header_style="bold", justify="left" if heading in ("run", "status") else "right")
    for name, found in states:
        if only and found["status"] not in only:
            continue
        state = found["status"]
        colour = COLOURS.get(state, "yellow")
        reason = f" {escape(found['error'])}" if "error" in found else ""
        table.add_row(name, f"[{colour}]{state}[/]{reason}", *_cells(found))
    console.print(table)
    counts = Counter(found["status"] for _, found in states)
    console.print(", ".join(f"{count} {state}" for state, count in counts.most_common()))


def _found(root: Path) -> list[Path]:
    found = sorted(root.glob("*/config.json"))
    if not found:
        raise ValueError(f"runs must be directories of swila run, got {root}, which holds none")
    return found


def _cells(found: dict[str, Any]) -> tuple[str, str, str]:
    over = "steps" in found and "best" in found
    step = found["steps"] if over else found.get("step")
    of = "" if over or not found.get("steps") else f"/{found['steps']:,}"
    score = found.get("best") if over else found.get("score")
    seconds = found.get("seconds")
    return (
        "" if step is None else f"{step:,}{of}",
        "" if score is None else f"{score:.3f}",
        "" if seconds is None else f"{seconds:.0f} s",
    )
