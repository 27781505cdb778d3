"""``swila bench``: benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swila.cli.bench_experiments import experiments
from swila.cli.bench_generation import generation as generation_throughput
from swila.cli.bench_pretraining import pretraining
from swila.cli.bench_training import training
from swila.cli.options import (
    Tuned,
    fail,
    needs_transformers,
    one_line_errors,
    parse_device,
    parse_dtype,
    parse_shape,
    parse_variant,
)

VARIANT_NAMES = (
    "plain, temporal, gated, gated-value, gated-head, gated-temporal, post-decay, post-decay-value-temporal, "
    "unnormalized, unnormalized-gated-temporal"
)
SHAPE = "B4 T1024 H4 K64 V64 J4"
OUT_OF_MEMORY = "out of memory"
bench = typer.Typer(help="Benchmark the operation, generation and training.", no_args_is_help=True)


@bench.callback()
def _bench() -> None:
    """Benchmark the operation, generation and training."""


@bench.command()
def op(
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Sizes of the call; on a GPU repeat for several. Default: {SHAPE}; on a GPU several shapes."
        ),
    ] = None,
    few_lanes: Annotated[
        bool, typer.Option("--few-lanes", help="On a GPU, shapes with few heads in all (batch times heads).")
    ] = False,
    variant: Annotated[
        str | None,
        typer.Option(help=f"Variant of the recurrence: {VARIANT_NAMES}. Default: plain; on a GPU three variants."),
    ] = None,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:1.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Dtype of the inputs: float32, bfloat16, float16, float64.")] = "float32",
    backend: Annotated[
        list[str] | None, typer.Option(help="Backend to time; repeat for several. Default: all.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Number of measurements of each backend; the median counts.", min=1)] = 5,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="On a GPU, baseline to compare with: GDN, DeltaNet, KDA; repeat for several. Default: all; "
            "with --few-lanes GDN."
        ),
    ] = None,
    tuned: Tuned = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="JSON file for the results. Default: runs/bench/op-DEVICE.json, with --few-lanes op-lanes-DEVICE.json"
        ),
    ] = None,
) -> None:
    """Time the backends of the operation.

    Measures the forward and the forward + backward. Each backend is first checked against the reference in float64. A
    backend with wrong numbers is not timed, and the exit status is then 1. The results are written to a JSON file, with
    hardware, versions and commit.

    On a GPU, unless --variant or --backend is given, the CUDA kernels in bfloat16 are compared with those of
    flash-linear-attention (if it is installed) on a state of the same size. The tables show all ratios of time and
    memory.
    """
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from swila.benchmarks.op import benchmark, input_bytes
    from swila.environment import environment

    path = out or Path("runs/bench") / f"op-{'lanes-' * few_lanes}{device.replace(':', '')}.json"
    if few_lanes and shape:
        fail("few-lanes and shape must not both be given: few-lanes is a list of shapes")
    if device.startswith("cuda") and variant is None and not backend:
        return _against_baselines(shape, few_lanes, device, repeats, baseline, tuned, path)
    for name, given in (("baseline", baseline), ("few-lanes", few_lanes), ("tuned", tuned)):
        if given:
            fail(
                f"{name} needs a GPU, and neither variant nor backend: otherwise there is no comparison with baselines"
            )
    if shape and len(shape) > 1:
        fail(f"shape must be given once for a comparison of backends, got {', '.join(shape)}")
    variant = variant or "plain"
    with one_line_errors():
        sizes, form, kind = parse_shape(shape[0] if shape else SHAPE), parse_variant(variant), parse_dtype(dtype)
        parse_device(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            fail(f"out must be a file, got the directory {path}")
        path.open("a").close()  # fails before the measurement rather than after it
        console = Console()
        with console.status("starting") as status:
            rows = benchmark(sizes, form, kind, device, backend, repeats, status.update)

    size = input_bytes(sizes, form, kind)
    table = Table(title=f"{variant}, {sizes}, {dtype}, {device}", title_justify="left", box=None)
    for heading in ("backend", "forward ms", "fwd + bwd ms", "× slowest", "memory / (inputs + gradients)"):
        table.add_column(heading, header_style="bold", justify="left" if heading == "backend" else "right")
    for row in rows:
        if row.forward_ms is None or row.total_ms is None or row.times_faster is None:
            console.print(f"[red]{row.backend} is not timed: {escape(row.refused or '')}[/]")
            continue
        peak = "" if row.peak_bytes is None else f"{row.peak_bytes / size:.2f}"
        table.add_row(row.backend, f"{row.forward_ms:.1f}", f"{row.total_ms:.1f}", f"{row.times_faster:.1f}", peak)
    console.print(table)
    record = {
        "benchmark": "op",
        "environment": environment(),
        "shape": asdict(sizes),
        "variant": {"name": variant, **asdict(form)},
        "dtype": dtype,
        "device": device,
        "repeats": repeats,
        "bytes_of_inputs_and_gradients": size,
        "rows": [row._asdict() for row in rows],
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    console.print(f"written to {path}")
    if any(row.wrong for row in rows):
        raise SystemExit(1)


@bench.command("generate")
def generation(
    model: Annotated[
        list[str] | None, typer.Option(help="Preset (see swila models); repeat for several. Default: three of them.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Batch size; repeat for several. Default: 1 and 64.")] = None,
    prompt: Annotated[int, typer.Option(help="Number of tokens of each prompt.", min=1)] = 2048,
    new: Annotated[int, typer.Option("--max-new-tokens", "-n", help="Number of tokens to generate.", min=17)] = 128,
    device: Annotated[str | None, typer.Option(help="Device. Default: cuda if there is one, else cpu.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Dtype of the weights. Default: bfloat16 on a GPU, else float32.")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled/--not-compiled", help="Also time the compiled decode step.")
    ] = True,
    long: Annotated[int, typer.Option(help="Number of tokens of a long text for the last model; 0 for none.")] = 0,
    repeats: Annotated[int, typer.Option(help="Number of measurements; the median counts.", min=1)] = 3,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the results. Default: runs/bench/generate-DEVICE.json")
    ] = None,
) -> None:
    """Time generation: reading the prompts, and decode steps.

    Compares swila.generate with generate of transformers, for the same models with random weights. Before it is timed,
    a tiny version of each model must give the same tokens with both, in float32. A model with other tokens is not
    timed, and the exit status is then 1. What does not fit in memory is a row that says so. The results are written
    after every case.
    """
    import json

    import torch
    from rich.console import Console
    from rich.table import Table

    from swila.environment import environment

    needs_transformers()
    from swila.benchmarks.generation import WAYS, LongText, benchmark, read_long_text
    from swila.models.language.presets import get_preset

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = where.startswith("cuda")
    path = out or Path("runs/bench") / f"generate-{where.replace(':', '')}.json"
    names = model or [f"{name}-{'374m' if on_gpu else 'tiny'}" for name in ("transformer", "gdn", "temporal-swila")]
    with one_line_errors():
        parse_device(where)
        kind = dtype or ("bfloat16" if on_gpu else "float32")
        for name in names:
            get_preset(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()  # fails before the measurement rather than after it
        console = Console()
        record = {
            "benchmark": "generate",
            "environment": environment(),
            "device": where,
            "dtype": kind,
            "prompt": prompt,
            "new": new,
            "repeats": repeats,
        }

        def save(timings: list, wrong: dict[str, str], text: LongText | None = None) -> None:
            found = {
                "timings": [row._asdict() for row in timings],
                "refused": wrong,
                "long": None if text is None else text._asdict(),
            }
            path.write_text(json.dumps(record | found, indent=2) + "\n")

        with console.status("starting") as status:
            timings, wrong = benchmark(
                names, batch or [1, 64], prompt, new, where, parse_dtype(kind), compiled, repeats, status.update, save
            )
            status.update("reading a long text")
            text = read_long_text(names[-1], long, where, parse_dtype(kind)) if long else None
            save(timings, wrong, text)
    title = f"prompts of {prompt} tokens, {new} new tokens, {kind}, {where}: ms for the prompts, and per decode step"
    ways = [way for way in WAYS if compiled or way != WAYS[1]]
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("model", header_style="bold", no_wrap=True)
    for heading in ("batch", "prompt", *ways):
        table.add_column(heading.removeprefix("swila, "), header_style="bold", justify="right", no_wrap=True)
    for row in timings:
        times = (f"{row.token_ms[way]:.2f}" if way in row.token_ms else OUT_OF_MEMORY for way in ways)
        reading = OUT_OF_MEMORY if row.prefill_ms is None else f"{row.prefill_ms:.0f}"
        table.add_row(row.model, str(row.batch), reading, *times)
    console.print(table)
    for name, reason in wrong.items():
        console.print(f"[red]{name} is not timed: {reason}[/]")
    if text is not None:
        continued = "bit for bit the same" if text.same else "[red]NOT the same[/]"
        console.print(
            f"{text.model} read {text.tokens:,} tokens in {text.read_s:.1f} s; the file of its state has "
            f"{text.file_bytes / 1e6:.1f} MB; generation resumed from the file: {continued}"
        )
    console.print(f"written to {path}")
    if wrong or (text is not None and not text.same):
        raise SystemExit(1)


bench.command()(training)
bench.command("generation")(generation_throughput)
bench.command()(experiments)
bench.command()(pretraining)


def _against_baselines(
    shape: list[str] | None,
    few_lanes: bool,
    device: str,
    repeats: int,
    names: list[str] | None,
    tuned: Path | None,
    path: Path,
) -> None:
    import json
    import re

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from swila.benchmarks.baselines import BASELINES, FEW_LANES, HEADINGS, MEASURES, SHAPES, benchmark, cells, pairs
    from swila.benchmarks.tuned import Choices, kept_in
    from swila.environment import environment
    from swila.layers import fla

    with one_line_errors():
        parse_device(device)
        names = names or (["GDN"] if few_lanes else None)
        shapes = tuple(map(parse_shape, shape)) if shape else FEW_LANES if few_lanes else SHAPES
        for name in names or ():
            if name not in BASELINES:
                fail(f"baseline must be one of {', '.join(BASELINES)}, got {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()  # fails before the measurement rather than after it
        console = Console()
        if reason := fla.unusable():
            console.print(f"[yellow]no baselines: {escape(reason)}[/]")
        about = {"benchmark": "op", "environment": environment(), "device": device, "repeats": repeats}
        about["tuned"] = tuned.name if tuned else None
        choices = Choices(tuned, environment()) if tuned else None

        def save(record: dict) -> None:
            path.write_text(json.dumps(about | record, indent=2) + "\n")

        with console.status("starting") as status, kept_in(choices):
            record = benchmark(shapes, device, repeats, status.update, save, tuple(names or BASELINES))
    for found in record["shapes"]:
        title = " ".join(f"{name}{size}" for name, size in found["shape"].items())
        table = Table(title=title, title_justify="left", box=None)
        for heading in HEADINGS:
            table.add_column(heading, header_style="bold", justify="right" if heading else "left")
        for row in found["timings"]:
            if row["refused"]:
                console.print(f"[red]{row['name']} is not timed: {escape(row['refused'])}[/]")
                continue
            table.add_row(*cells(row))
        console.print(table)
    if pairs(record):
        table = Table(title="ours / baseline, for each shape; below 1 ours takes less", title_justify="left", box=None)
        for heading in ("", *MEASURES.values()):
            table.add_column(heading, header_style="bold", justify="right" if heading else "left")
        for row in pairs(record):
            table.add_row(*(re.sub(r"\*\*(.*?)\*\*", r"[bold red]\1[/]", cell) for cell in row))
        console.print(table)
    step = record["decode"]
    console.print(
        f"decode step: {step['ms'] * 1e3:.0f} µs, [bold]{step['ratio']:.2f}[/] times reading and writing the state once"
    )
    console.print("/ copy: time over that of moving inputs, outputs and gradients once, at the bandwidth of a copy")
    console.print(f"written to {path}")
    if any(row["refused"] for found in record["shapes"] for row in found["timings"]):
        raise SystemExit(1)
