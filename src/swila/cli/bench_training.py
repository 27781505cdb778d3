"""``swila bench training``: throughput and memory of training updates, as in figure S3 of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swila.cli.options import Tuned, fail, needs_transformers, one_line_errors, parse_device, parse_dtype

if TYPE_CHECKING:
    from rich.table import Table


def training(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Architecture; repeat for several. Default: the six of the figure (see --help)."),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(help="Tokens of a sequence; repeat for several. Default: 2048, 4096, 8192 and 16384.", min=2),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of an update, whatever the length.", min=2)] = 131_072,
    batch: Annotated[
        int | None, typer.Option(help="Sequences of an update, instead of a number of tokens.", min=1)
    ] = None,
    micro_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of the largest micro-batch to try. Default: all of an update; halved until it fits."),
    ] = None,
    size: Annotated[str, typer.Option(help="Size of the models: 1.3b, 374m, small, tiny.")] = "1.3b",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the blocks (on a GPU), or run eagerly.")
    ] = True,
    baseline: Annotated[
        bool, typer.Option("--fla/--no-fla", help="Measure flash-linear-attention's own GDN model first.")
    ] = True,
    fla_tf32: Annotated[
        bool,
        typer.Option(
            "--fla-tf32/--no-fla-tf32",
            help="Measure that model a second time with TensorFloat-32 allowed, which its loss gains from.",
        ),
    ] = True,
    fla_compile: Annotated[
        bool, typer.Option("--fla-compile/--no-fla-compile", help="Compile the blocks of that model too.")
    ] = False,
    tuned: Tuned = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also profile an update of each case, on a GPU.")] = False,
    updates: Annotated[int, typer.Option(help="Number of timed updates, after three others.", min=1)] = 3,
    device: Annotated[str, typer.Option(help="Device: cuda, cuda:1; cpu for a trial.")] = "cuda",
    dtype: Annotated[
        str | None, typer.Option(help="Dtype of the weights. Default: bfloat16 on a GPU, else float32.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the results file instead of adding to it.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="JSON file for the results. Default: runs/bench/training-DEVICE.json, training-SIZE-DEVICE.json"
        ),
    ] = None,
) -> None:
    """Measure training updates of whole models: figure S3 of the paper.

    The models are transformer, gdn, hybrid-gdn, swila, temporal-swila and hybrid-temporal-swila, and as the baseline of
    all ratios flash-linear-attention's own GDN model with its fused layers, if it is installed. Every update has the
    same number of tokens: forward, loss, backward, clipping and AdamW. If a micro-batch does not fit, it is halved and
    gradients are accumulated. The results are written after every case, and a later call with the same settings adds
    the cases that are missing. Before it is timed, a model's gradients are compared with float32, and its recurrence
    with the token loop in float64. A model that is wrong is not timed, and the exit status is then 1.
    """
    from rich.console import Console
    from rich.markup import escape

    from swila.environment import environment

    needs_transformers()
    from swila.benchmarks.throughput.contenders import BASELINES, MODELS, check_name
    from swila.benchmarks.throughput.results import Results
    from swila.benchmarks.throughput.training import KEYS, LENGTHS, Case, Setting, benchmark
    from swila.benchmarks.tuned import Choices, kept_in
    from swila.layers import fla

    console = Console()
    of_size = "" if size == "1.3b" else f"{size}-"
    path = out or Path("runs/bench") / f"training-{of_size}{device.replace(':', '')}.json"
    with one_line_errors():
        parse_device(device)
        on_gpu = device.startswith("cuda")
        kind = dtype or ("bfloat16" if on_gpu else "float32")
        names = [name for name in model or MODELS if name not in BASELINES]
        for name in names:
            check_name(name, size)
        if baseline and (reason := fla.unusable() if on_gpu else "it needs a GPU"):
            console.print(f"[yellow]no baseline: {escape(reason)}[/]")
            baseline = False
        if batch is None and (uneven := [n for n in length or LENGTHS if tokens % n]):
            fail(f"tokens must be a multiple of each length, got {tokens} and {uneven[0]}; or give --batch")
        rivals = BASELINES[: baseline + (baseline and fla_tf32)]
        asked = [(name, fla_compile and on_gpu) for name in rivals] + [(name, compiled and on_gpu) for name in names]
        cases = [Case(name, T, batch or tokens // T, compiles) for T in length or LENGTHS for name, compiles in asked]
        setting = Setting(size, device, parse_dtype(kind), updates=updates, profile=profile, micro_tokens=micro_tokens)
        about = {
            "benchmark": "throughput-training",
            "size": size,
            "device": device,
            "dtype": kind,
            "warm_up": setting.warm_up,
            "updates": updates,
            "tuned": tuned.name if tuned else None,
        }
        results = Results(path, about, environment(), KEYS, fresh)
        choices = Choices(tuned, environment()) if tuned else None
        with console.status("starting") as status, kept_in(choices):
            new = benchmark(cases, setting, results, lambda text: status.update(escape(text)))
    console.print(_table(results.record))
    for row in results.record["rows"]:
        if row["status"] != "timed":
            console.print(f"[red]{row['model']}, T {row['length']:,}: {row['status']}: {escape(str(row['reason']))}[/]")
    for row in new:
        if "profile" in row:
            spent = ", ".join(f"{kind} {ms:,.1f}" for kind, ms in row["profile"]["kinds"].items())
            console.print(f"{row['model']}, T {row['length']:,}, ms of an update: {spent}", markup=False)
    console.print(f"written to {path}", markup=False)
    if any(row["status"] in ("refused", "failed") for row in new):
        raise SystemExit(1)


def _table(record: dict[str, Any]) -> Table:
    from rich.table import Table

    from swila.benchmarks.throughput.training import ratio

    table = Table(title=f"training updates, {record['size']}, {record['dtype']}", title_justify="left", box=None)
    for heading in ("model", "T", "batch", "at a time", "tokens/s", "/ FLA's GDN", "peak GB", "/ FLA's GDN"):
        table.add_column(heading, header_style="bold", justify="left" if heading == "model" else "right")
    for row in sorted(record["rows"], key=lambda row: row["length"]):
        if row["status"] != "timed":
            continue
        speed, memory = (ratio(record, row, field) for field in ("tokens_per_second", "peak_bytes"))
        peak = row["peak_bytes"]
        table.add_row(
            row["model"] + ("" if row["compiled"] else ", eager"),
            f"{row['length']:,}",
            str(row["batch"]),
            str(row["micro_batch"]),
            f"{row['tokens_per_second']:,.0f}",
            "" if speed is None else f"{speed:.2f}",
            "" if peak is None else f"{peak / 1e9:.1f}",
            "" if memory is None else f"{memory:.2f}",
        )
    return table
