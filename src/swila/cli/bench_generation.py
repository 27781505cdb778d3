"""``swila bench generation``: throughput and memory of generation, as in figure S4 of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swila.cli.options import Tuned, needs_transformers, one_line_errors, parse_device, parse_dtype

if TYPE_CHECKING:
    from rich.table import Table


def generation(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Architecture; repeat for several. Default: the six of the figure (see --help)."),
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Batch size; repeat for several. Default: 1, 2, 4, ..., 128.", min=1)
    ] = None,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.", min=1)] = 2048,
    new: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Tokens to generate.", min=1)] = 128,
    size: Annotated[str, typer.Option(help="Size of the models: 1.3b, 374m, small, tiny.")] = "1.3b",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the decode step (on a GPU), or not.")
    ] = True,
    baseline: Annotated[
        bool,
        typer.Option("--fla/--no-fla", help="Measure flash-linear-attention's own GDN model first, eagerly."),
    ] = True,
    tuned: Tuned = None,
    device: Annotated[str, typer.Option(help="Device: cuda, cuda:1; cpu for a trial.")] = "cuda",
    dtype: Annotated[
        str | None, typer.Option(help="Dtype of the weights. Default: bfloat16 on a GPU, else float32.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the results file instead of adding to it.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="JSON file for the results. Default: runs/bench/generation-DEVICE.json, generation-SIZE-DEVICE.json"
        ),
    ] = None,
) -> None:
    """Measure generation with whole models: figure S4 of the paper.

    The models are transformer, gdn, hybrid-gdn, swila, temporal-swila and hybrid-temporal-swila. A call of
    swila.generate reads the prompts and generates greedily; throughput counts the generated tokens over the time of the
    whole call, the mean of three after two that are not timed. Batches grow until one does not fit.
    flash-linear-attention's own GDN model, if it is installed, generates by transformers' generate. The results are
    written after every case, and a later call with the same settings adds the cases that are missing. A model is timed
    only if its tiny version generates the tokens of transformers' generate; the exit status is 1 otherwise.
    """
    from rich.console import Console
    from rich.markup import escape

    from swila.environment import environment

    needs_transformers()
    from swila.benchmarks.throughput.contenders import BASELINE, BASELINES, MODELS, check_name
    from swila.benchmarks.throughput.generation import BATCHES, KEYS, Setting, benchmark
    from swila.benchmarks.throughput.results import Results
    from swila.benchmarks.tuned import Choices, kept_in
    from swila.layers import fla

    console = Console()
    path = (
        out or Path("runs/bench") / f"generation-{'' if size == '1.3b' else size + '-'}{device.replace(':', '')}.json"
    )
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
        setting = Setting(size, device, parse_dtype(kind), prompt, new, compiled and on_gpu)
        about = {
            "benchmark": "throughput-generation",
            "size": size,
            "device": device,
            "dtype": kind,
            "prompt": prompt,
            "new": new,
            "calls": setting.calls,
            "warm_up": setting.warm_up,
            "tuned": tuned.name if tuned else None,
        }
        results = Results(path, about, environment(), KEYS, fresh)
        choices = Choices(tuned, environment()) if tuned else None
        rivals = [BASELINE] * baseline
        with console.status("starting") as status, kept_in(choices):
            report = lambda text: status.update(escape(text))  # noqa: E731
            new_rows = benchmark([*rivals, *names], batch or BATCHES, setting, results, report)
    console.print(_table(results.record))
    for row in results.record["rows"]:
        if row["status"] != "timed":
            console.print(
                f"[red]{row['model']}, batch {row['batch']}: {row['status']}: {escape(str(row['reason']))}[/]"
            )
        if "weights_ms" in row:
            times = row["step_ms"] / row["weights_ms"]
            console.print(f"{row['model']}, batch 1: a step takes {times:.1f} times reading the weights once")
        if "forward_ms" in row:
            console.print(
                f"{row['model']}, batch {row['batch']}: prompts are read at {row['forward_ms'] / row['prompt_ms']:.2f} "
                "times the speed of a compiled forward without cache"
            )
    console.print(f"written to {path}", markup=False)
    if any(row["status"] in ("refused", "failed") for row in new_rows):
        raise SystemExit(1)


def _table(record: dict[str, Any]) -> Table:
    from rich.table import Table

    title = (
        f"generation, {record['size']}, {record['dtype']}, prompts of {record['prompt']:,} tokens, {record['new']} new"
    )
    table = Table(title=title, title_justify="left", box=None)
    for heading in ("model", "batch", "tokens/s", "ms for the prompts", "ms a step", "peak GB"):
        table.add_column(heading, header_style="bold", justify="left" if heading == "model" else "right")
    for row in record["rows"]:
        if row["status"] == "timed":
            peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e9:.1f}"
            times = (f"{row['tokens_per_second']:,.0f}", f"{row['prompt_ms']:,.0f}", f"{row['step_ms']:.2f}")
            table.add_row(row["model"], str(row["batch"]), *times, peak)
    return table
