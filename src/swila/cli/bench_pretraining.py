"""``swila bench pretraining``: throughput and memory of ``swila pretrain`` beside a bare loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swila.cli.options import needs_transformers, one_line_errors, parse_device


def pretraining(
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            help="Recipe to measure; repeat for several. Default: swila, temporal-swila, gdn and transformer at 374m."
        ),
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens of a sequence.", min=1)] = 4096,
    batch: Annotated[int, typer.Option(help="Sequences of an update, in one micro-batch.", min=1)] = 8,
    updates: Annotated[int, typer.Option(help="Number of timed updates.", min=1)] = 30,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the results. Default: runs/bench/pretraining-cuda.json")
    ] = None,
) -> None:
    """Measure the throughput of swila pretrain on a GPU.

    Beside it, a loop of a few lines over the same model: compiled blocks, fused AdamW, clipping, and one batch that
    is on the GPU already, with weights in bfloat16 and in float32.
    """
    import json

    from rich.console import Console
    from rich.table import Table

    needs_transformers()
    from swila.benchmarks.pretraining import MODELS, benchmarked, measure
    from swila.environment import environment

    path = out or Path("runs") / "bench" / "pretraining-cuda.json"
    console = Console()
    with one_line_errors():
        parse_device("cuda")
        recipes = [benchmarked(name, length, batch, updates) for name in recipe or [f"{m}-374m" for m in MODELS]]
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"benchmark": "pretraining", "environment": environment(), "device": "cuda", "updates": updates}
        found = []
        with console.status("starting") as status:
            for each in recipes:
                found.append(measure(each, updates, status.update))
                path.write_text(json.dumps(record | {"recipes": found}, indent=2) + "\n")
    table = Table(title=f"tokens per second, {batch} × {length:,} tokens an update", title_justify="left", box=None)
    table.add_column("recipe", header_style="bold")
    for heading in ("swila pretrain", "MFU", "GB", "bare, bfloat16", "ratio", "bare, float32", "ratio"):
        table.add_column(heading, header_style="bold", justify="right")
    for row in found:
        engine, bare = row["engine"], row["bare"]
        speed = engine["tokens_per_second"]
        utilisation = "" if engine["mfu"] is None else f"{engine['mfu']:.1%}"
        beside = [(each["tokens_per_second"], speed / each["tokens_per_second"]) for each in bare.values()]
        table.add_row(
            row["recipe"],
            f"{speed:,.0f}",
            utilisation,
            f"{engine['memory_gb']:.1f}",
            *(text for rate, ratio in beside for text in (f"{rate:,.0f}", f"{ratio:.3f}")),
        )
    console.print(table)
    console.print(f"written to {path}", markup=False)
