"""``swila status``: the status of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swila.cli.options import one_line_errors

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
    runs: Annotated[
        list[Path],
        typer.Argument(help="Runs of swila run or swila pretrain: their directories, or directories that hold them."),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(help="Show only runs with this status; repeat for several: " + ", ".join(COLOURS) + "."),
    ] = None,
) -> None:
    """Show the status of runs.

    Lists which runs are finished, running, waiting or failed, and why they failed. A run is broken if its result.json
    or config.json is invalid or incomplete. Of pretraining runs the speed is shown too, the median of the last 100
    logged updates, and of a running one the time left. The command only reads the run directories, so it can be used
    from another terminal during training.
    """
    from collections import Counter

    from rich.console import Console
    from rich.markup import escape

    console = Console()
    with one_line_errors():
        for state in only or ():
            if state not in COLOURS:
                raise ValueError(f"only must be one of {', '.join(COLOURS)}, got {state}")
        states = [(path.name, _status(path)) for root in runs for path in _found(root)]
    shown = [(name, found) for name, found in states if not only or found["status"] in only]
    columns = {heading: [cell(found) for _, found in shown] for heading, cell in CELLS.items()}
    columns = {heading: cells for heading, cells in columns.items() if any(cells) or heading not in OPTIONAL}
    rows = [(name, found["status"], *(cells[i] for cells in columns.values())) for i, (name, found) in enumerate(shown)]
    console.print(make_table(console, ("run", "status", *columns), rows))
    for name, found in shown:
        if "error" in found:
            reason = str(found["error"]).partition("\n")[0]
            told = f"[red]{escape(name)}[/] {escape(found['status'])}: {escape(reason)}"
            console.print(told, soft_wrap=True, highlight=False)
    counts = Counter(found["status"] for _, found in states)
    console.print(", ".join(f"{count} {state}" for state, count in counts.most_common()), markup=False)


def make_table(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table whose columns are wide enough for their cells; names of runs wrap in a narrow terminal.

    Args:
        console: Where the table will be printed; it is made as wide as the table.
        headings: Headings; the first column has the names of runs, the second their status.
        rows: Texts of the cells.
    """
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None)
    widths = [max(map(len, [*heading.split(), *(row[i] for row in rows)])) for i, heading in enumerate(headings)]
    rest = sum(widths[1:]) + 2 * len(widths)
    if console.is_terminal:
        widths[0] = min(widths[0], max(12, console.width - rest))
    console.width = max(console.width, widths[0] + rest)
    for i, heading in enumerate(headings):
        side: Any = "left" if i < 2 else "right"
        table.add_column(heading, header_style="bold", justify=side, width=widths[i], overflow="fold")
    for name, state, *cells in rows:
        table.add_row(escape(name), f"[{COLOURS.get(state, 'white')}]{escape(state)}[/]", *map(escape, cells))
    return table


def _found(root: Path) -> list[Path]:
    """Return the runs that a path is or holds."""
    from swila.training.run_directory import is_run, runs_below

    if is_run(root):
        return [root.resolve()]
    found = runs_below(root)
    if not found:
        raise ValueError(f"runs must be directories of swila run or swila pretrain, got {root}, which holds no run")
    return found


def _status(path: Path) -> dict[str, Any]:
    """Return the status of a run; ``"broken"`` if a file is invalid, so that the other runs are still listed."""
    from contextlib import suppress

    from swila.pretraining.run_status import is_pretraining, read_run_status
    from swila.training import read_status
    from swila.training.json_files import read_json

    found: dict[str, Any] = {}
    try:
        found = read_run_status(path) if is_pretraining(path) else read_status(path)
        with suppress(FileNotFoundError):  # the run may be deleted meanwhile
            read_json(path / "config.json")
    except (ValueError, OSError) as error:
        return {**found, "status": "broken", "error": str(error)}
    return found


def _step(found: dict[str, Any]) -> str:
    ended = _ended(found)
    step = found["steps"] if ended else found.get("step")
    of = "" if ended or not found.get("steps") else f"/{found['steps']:,}"
    return "" if step is None else f"{step:,}{of}"


def _score(found: dict[str, Any]) -> str:
    from swila.cli.live import called
    from swila.plots.style import readable

    score = found.get("best") if _ended(found) else found.get("score")
    if score is None:
        return ""
    metric = str(found.get("metric", "score"))
    text = readable(score) if metric == "perplexity" else f"{score:.3f}"
    return f"{called(metric)} {text}"


def _ended(found: dict[str, Any]) -> bool:
    return "steps" in found and "best" in found


def _duration(seconds: float | None) -> str:
    from swila.cli.time_left import in_words

    if seconds is None:
        return ""
    return f"{seconds:.0f} s" if seconds < 600 else in_words(seconds)


def _speed(found: dict[str, Any]) -> str:
    speed = found.get("tokens_per_second")
    return "" if speed is None else f"{speed:,.0f}"


CELLS: dict[str, Callable[[dict[str, Any]], str]] = {
    "step": _step,
    "score": _score,
    "tokens/s": _speed,
    "time": lambda found: _duration(found.get("seconds")),
    "left": lambda found: _duration(found.get("seconds_left")),
}
OPTIONAL = ("tokens/s", "left")  # columns that are left out if they are empty
