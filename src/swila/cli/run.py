"""``swila run``: the experiments of the paper, at three sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swila.cli.live import train
from swila.cli.options import fail, one_line_errors, parse_device, parse_seeds

if TYPE_CHECKING:
    from rich.console import Console

    from swila.experiments.training_run import TrainingRun

run = typer.Typer(
    help="Run an experiment of the paper: train its models, print the table, draw the figures.", no_args_is_help=True
)


@run.callback()
def _run() -> None:
    """Run an experiment of the paper: train its models, print the table, draw the figures."""


@run.command()
def cdar(
    preset: Annotated[
        str,
        typer.Option(
            help="Size: tiny (3 contexts of 2 keys, minutes on a CPU), small (4 of 8, one GPU) or paper (4 of 32)."
        ),
    ] = "tiny",
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model to train; repeat for several: temporal-swila, swila, deltanet, gated-deltanet, kda, dn-mom, "
            "attention, fox. Default: those of the preset."
        ),
    ] = None,
    hidden_size: Annotated[
        list[int] | None, typer.Option(help="Width d; repeat for several. The state has C (d/2)² scalars.")
    ] = None,
    layers: Annotated[list[int] | None, typer.Option(help="Blocks; repeat for several.", min=1)] = None,
    lr: Annotated[list[float] | None, typer.Option(help="Learning rate; repeat for several.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds (3), or which ones (0,4,7). Default: the preset's number.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps at most. Default: the preset's.", min=1)] = None,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1.")] = "cpu",
    jobs: Annotated[
        int | None, typer.Option(help="Runs side by side. Default: one for each core on a CPU, else 1.", min=1)
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of each run; its last digits depend on them.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Directory for everything. Default: runs/cdar-PRESET")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw away runs that are already there, instead of going on with them.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option(help="Write TensorBoard's event files as well.")] = True,
) -> None:
    """Context-dependent associative recall.

    Can a model keep several contexts apart in one small state? The same key has another value in every context, and the
    context is named only once. All models have the same state size. One that knows the values but not the context
    scores 1/C.

    Interrupt it with Ctrl-C: the same command goes on where it stopped. In the output directory: results.json (the
    table, with hardware, versions and commit), accuracy.png, routing.png, and a directory for
    every run with its configuration, metrics (JSON lines, TensorBoard) and checkpoint.
    """
    from rich.console import Console

    from swila.experiments.cdar import PRESETS, make_runs
    from swila.experiments.sweep import claim

    console = Console()
    with one_line_errors():
        runs = make_runs(preset, model, hidden_size, layers, lr, parse_seeds(seeds), steps)
        directory = out or Path("runs") / f"cdar-{preset}"
        claim(directory, {"experiment": "cdar", "preset": preset})
        console.print(f"[bold]CDAR, {preset}[/]: {PRESETS[preset].summary}")
        results = train(console, runs, directory, parse_device(device), jobs, threads, fresh, tensorboard)
    with one_line_errors():
        _finish(console, preset, device, runs, results, directory)
    if failed := [name for name, result in results.items() if result["status"] == "failed"]:
        fail(f"{len(failed)} of {len(runs)} runs failed; the first, {failed[0]}: {results[failed[0]]['error']}")


def _finish(
    console: Console,
    preset: str,
    device: str,
    runs: list[TrainingRun],
    results: dict[str, dict[str, Any]],
    directory: Path,
) -> None:
    """Table, results file and figures."""
    from swila.experiments.cdar import PRESETS, summarize
    from swila.experiments.sweep import environments
    from swila.experiments.training_run import TrainingRun
    from swila.training.run_directory import write_json

    others = [pair for pair in TrainingRun.finished_in(directory) if pair[0].name not in results]
    if others:
        console.print(f"with {len(others)} runs of earlier commands in this directory")
        runs = [*runs, *(run for run, _ in others)]
        results = {**results, **{run.name: result for run, result in others}}
    rows = summarize(runs, results)
    first, *more = environments(runs, directory)
    record = {
        "experiment": "cdar",
        "preset": preset,
        "environment": first,
        **({"other_environments": more} if more else {}),
        "device": device,
        "plateau": PRESETS[preset].task.plateau,
        "rows": rows,
        "runs": {each.name: results[each.name] for each in runs},
    }
    write_json(directory / "results.json", record)
    console.print(_table(rows, PRESETS[preset].task.plateau))
    console.print(f"results in {directory / 'results.json'}", markup=False)
    _draw(console, runs, rows, directory)


def _table(rows: list[dict[str, Any]], plateau: float) -> Any:
    from rich.table import Table

    from swila.experiments.cdar import MODELS

    caption = f"best and mean over learning rates and seeds; {plateau:.2f} is knowing the values but not the context"
    table = Table(title="\ntest accuracy", title_justify="left", box=None, caption=caption, caption_justify="left")
    for heading in ("model", "width", "layers", "state", "parameters", "best", "mean", "solved"):
        table.add_column(heading, header_style="bold", justify="left" if heading == "model" else "right")
    top = max((row["best"] for row in rows if row["best"] is not None), default=None)
    for row in rows:
        best = "" if row["best"] is None else f"{row['best']:.3f}"
        mean = "" if row["mean"] is None else f"{row['mean']:.3f}"
        best = f"[bold green]{best}[/]" if row["best"] is not None and row["best"] == top else best
        sizes = str(row["hidden_size"]), str(row["layers"]), f"{row['state']:,}", f"{row['parameters']:,}"
        table.add_row(MODELS[row["model"]], *sizes, best, mean, f"{row['solved']}/{row['runs']}")
    return table


def _draw(console: Console, runs: list[TrainingRun], rows: list[dict[str, Any]], directory: Path) -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        hint = "pip install 'swila[plots]'"
        console.print(f"no figures: they need matplotlib ({hint}); the same command then draws them", markup=False)
        return
    from swila.experiments.cdar_figures import draw_accuracy, draw_routing

    for paths in (draw_accuracy(runs, rows, directory), draw_routing(runs, directory)):
        if paths:
            console.print(f"figure in {paths[0]} (and {paths[1].name})", markup=False)
