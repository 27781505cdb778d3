"""``swila bench experiments``: training updates per second of the synthetic experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swila.cli.options import fail, one_line_errors, parse_device


def experiments(
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="Run to measure: 'cdar, paper', 'cdar, small', 'softmax-regression, H1J2', 'regbench, small'; repeat "
            "for several. Default: all."
        ),
    ] = None,
    replicas: Annotated[
        list[int] | None,
        typer.Option(help="Number of concurrent runs; repeat for several. Default: 1, 2, 4 and 8.", min=1),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Duration of each measurement.", min=0.1)] = 3.0,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the results. Default: runs/bench/experiments-cuda.json")
    ] = None,
) -> None:
    """Measure training updates per second of the synthetic experiments on a GPU.

    Each case is measured in eager mode, then compiled and captured in a CUDA graph: one run alone, and several
    concurrent runs with a CUDA stream each. The results also hold the mean loss of the first updates, which must be the
    same in all modes up to rounding, and the time of each kind of kernel.
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from swila.benchmarks.experiments import CASES, measure
    from swila.environment import environment

    path = out or Path("runs") / "bench" / "experiments-cuda.json"
    console = Console()
    with one_line_errors():
        for name in case or ():
            if name not in CASES:
                fail(f"case must be one of {'; '.join(CASES)}, got {name}")
        parse_device("cuda")
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"benchmark": "experiments", "environment": environment(), "device": "cuda", "seconds": seconds}
        found = []
        with console.status("starting") as status:
            for name in case or CASES:
                found.append(measure(name, replicas or (1, 2, 4, 8), seconds, status.update))
                path.write_text(json.dumps(record | {"cases": found}, indent=2) + "\n")
    table = Table(title="updates per second, all runs together", title_justify="left", box=None)
    table.add_column("", header_style="bold")
    for heading in ("eager", *(f"{n} captured" for n in found[0]["captured"])):
        table.add_column(heading, header_style="bold", justify="right")
    for row in found:
        rates = [way["updates_per_s"] for way in (row["plain"], *row["captured"].values())]
        table.add_row(row["case"], *(f"{rate:,.0f}" for rate in rates))
    console.print(table)
    for row in found:
        spent = ", ".join(f"{kind} {time:,.0f}" for kind, time in row["microseconds"].items())
        console.print(f"{row['case']}, microseconds per update: {spent}", markup=False)
    console.print(f"written to {path}", markup=False)
