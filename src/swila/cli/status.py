"""``swila status``: the status of the runs in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from swila.cli.options import one_line_errors

COLOURS = {
    "finished": "green",
    "solved": "green",
    "stopped": "green",
    "running": "cyan",
    "interrupted": "yellow",
    "waiting": "yellow",
    "diverged": "red",
    "failed": "red",
    "broken": "red",
}


def status(
    runs: Annotated[list[Path], typer.Argument(help="Directories of swila run.")],
    only: Annotated[
        list[str] | None,
        typer.Option(help="Show only runs with this status; repeat for several: " + ", ".join(COLOURS) + "."),
    ] = None,
) -> None:
    """Show the status of runs.

    Lists which runs are finished, running, waiting or failed, and why they failed. A run is broken if its result.json
    or config.json is invalid or incomplete. The command only reads the run directories, so it can be used from another
    terminal during training.
    """
    from collections import Counter

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    with one_line_errors():
        for state in only or ():
            if state not in COLOURS:
                raise ValueError(f"only must be one of {', '.join(COLOURS)}, got {state}")
        states = [(path.name, _status(path)) for root in runs for path in _found(root)]
    table, reasons = Table(box=None), list[str]()
    for heading in ("run", "status", "step", "score", "time"):
        left = heading in ("run", "status")
        table.add_column(heading, header_style="bold", justify="left" if left else "right", no_wrap=True)
    for name, found in states:
        if only and found["status"] not in only:
            continue
        state = found["status"]
        colour = COLOURS.get(state, "white")
        table.add_row(escape(name), f"[{colour}]{escape(state)}[/]", *_cells(found))
        if "error" in found:
            reason = str(found["error"]).partition("\n")[0]
            reasons.append(f"[red]{escape(name)}[/] {escape(state)}: {escape(reason)}")
    console.print(table)
    for reason in reasons:
        console.print(reason, soft_wrap=True, highlight=False)
    counts = Counter(found["status"] for _, found in states)
    console.print(", ".join(f"{count} {state}" for state, count in counts.most_common()), markup=False)


def _found(root: Path) -> list[Path]:
    from swila.training.run_directory import runs_below

    found = runs_below(root)
    if not found:
        raise ValueError(f"runs must be directories of swila run, got {root}, which holds none")
    return found


def _status(path: Path) -> dict[str, Any]:
    """Return the status of a run; ``"broken"`` if a file is invalid, so that the other runs are still listed."""
    from contextlib import suppress

    from swila.training import read_status
    from swila.training.json_files import read_json

    found: dict[str, Any] = {}
    try:
        found = read_status(path)
        with suppress(FileNotFoundError):  # the run may be deleted meanwhile
            read_json(path / "config.json")
    except (ValueError, OSError) as error:
        return {**found, "status": "broken", "error": str(error)}
    return found


def _cells(found: dict[str, Any]) -> tuple[str, str, str]:
    ended = "steps" in found and "best" in found
    step = found["steps"] if ended else found.get("step")
    of = "" if ended or not found.get("steps") else f"/{found['steps']:,}"
    score = found.get("best") if ended else found.get("score")
    seconds = found.get("seconds")
    return (
        "" if step is None else f"{step:,}{of}",
        "" if score is None else f"{score:.3f}",
        "" if seconds is None else f"{seconds:.0f} s",
    )
