"""``swila bench training``: updates a second, alone and side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swila.cli.options import fail, one_line_errors, parse_device


def training(
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="What to train: 'cdar, paper', 'cdar, small', 'softmax-regression, H1J2', 'regbench, small'; by "
            "default all of them."
        ),
    ] = None,
    replicas: Annotated[
        list[int] | None, typer.Option(help="Runs side by side; repeat for several. Default: 1, 2, 4 and 8.", min=1)
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long each is measured.", min=0.1)] = 3.0,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the results. Default: runs/bench/training-cuda.json")
    ] = None,
) -> None:
    """Count the updates of training runs on a GPU, alone and side by side.

    Each experiment is measured as torch runs it, then compiled and captured in a CUDA graph, by itself and in several
    runs that take turns on streams of their own. The mean loss of the first updates, which is to be the same in all
    ways up to rounding, is written down beside the rates, and so is where the time of an update goes.
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from swila.benchmarks.training import CASES, measure
    from swila.environment import environment

    path = out or Path("runs") / "bench" / "training-cuda.json"
    console = Console()
    with one_line_errors():
        for name in case or ():
            if name not in CASES:
                fail(f"case must be one of {'; '.join(CASES)}, got {name}")
        parse_device("cuda")
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"benchmark": "training", "environment": environment(), "device": "cuda", "seconds": seconds}
        found = []
        with console.status("starting") as status:
            for name in case or CASES:
                found.append(measure(name, replicas or (1, 2, 4, 8), seconds, status.update))
                path.write_text(json.dumps(record | {"cases": found}, indent=2) + "\n")
    table = Table(title="updates a second, all runs together", title_justify="left", box=None)
    table.add_column("", header_style="bold")
    for heading in ("as torch runs it", *(f"{n} captured" for n in found[0]["captured"])):
        table.add_column(heading, header_style="bold", justify="right")
    for row in found:
        rates = [way["updates_per_s"] for way in (row["plain"], *row["captured"].values())]
        table.add_row(row["case"], *(f"{rate:,.0f}" for rate in rates))
    console.print(table)
    for row in found:
        spent = ", ".join(f"{kind} {time:,.0f}" for kind, time in row["microseconds"].items())
        console.print(f"{row['case']}, microseconds of an update: {spent}", markup=False)
    console.print(f"written to {path}", markup=False)
