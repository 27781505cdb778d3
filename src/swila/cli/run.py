"""``swila run``: the experiments of the paper, at three sizes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swila.cli.options import fail, one_line_errors, parse_device

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as ProgressBar

    from swila.experiments.sweep import News
    from swila.experiments.token_run import TokenRun

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
    """Context-dependent associative recall: can a model keep several contexts apart in one small state?

    The same key has another value in every context, and the context is named only once. All models have the same state
    size. One that knows the values but not the context scores 1/C.

    Interrupt it with Ctrl-C: the same command goes on where it stopped. In the output directory: results.json (the
    table, with hardware, versions and commit), accuracy.png, routing.png, and a directory for
    every run with its configuration, metrics (JSON lines, TensorBoard) and checkpoint.
    """
    from rich.console import Console

    from swila.experiments.cdar import PRESETS, make_runs
    from swila.experiments.sweep import claim, run_all
    from swila.training import RunDirectory

    console = Console()
    with one_line_errors():
        parse_device(device)
        runs = make_runs(preset, model, hidden_size, layers, lr, parse_seeds(seeds), steps)
        directory = out or Path("runs") / f"cdar-{preset}"
        claim(directory, {"experiment": "cdar", "preset": preset})
        for each in runs:
            RunDirectory.check(directory / each.name, each.config(), fresh)
        there = 0 if fresh else sum((directory / each.name / "result.json").exists() for each in runs)
        jobs = jobs or (_cores() if device == "cpu" else 1)
        console.print(f"[bold]CDAR, {preset}[/]: {PRESETS[preset].summary}")
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        console.print(f"{count} on {device}, {min(jobs, len(runs))} at a time, in {directory}", markup=False)
        if there:
            console.print(f"{there} of {len(runs)} runs are there already (--fresh trains them anew)")
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        with _live(console, runs) as show:
            try:
                results = run_all(
                    runs,
                    directory,
                    device=device,
                    jobs=jobs,
                    threads=threads,
                    fresh=fresh,
                    tensorboard=tensorboard,
                    report=show,
                )
            except KeyboardInterrupt:
                results = None
    if results is None:
        console.print(f"interrupted; the same command goes on from {directory}", markup=False)
        raise SystemExit(130)
    with one_line_errors():
        _finish(console, preset, device, runs, results, directory)
    if failed := [name for name, result in results.items() if result["status"] == "failed"]:
        fail(f"{len(failed)} of {len(runs)} runs failed; the first, {failed[0]}: {results[failed[0]]['error']}")


def _finish(
    console: Console,
    preset: str,
    device: str,
    runs: list[TokenRun],
    results: dict[str, dict[str, Any]],
    directory: Path,
) -> None:
    """Table, results file and figures."""
    from swila.experiments.cdar import PRESETS, summarize
    from swila.experiments.sweep import environments
    from swila.experiments.token_run import TokenRun
    from swila.training.run_directory import write_json

    others = [pair for pair in TokenRun.finished_in(directory) if pair[0].name not in results]
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


def parse_seeds(text: str | None) -> list[int] | None:
    """``"3"`` is three seeds, 0 to 2; ``"0,4,7"`` are these."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if (
        not parts
        or not all(part.isascii() and part.isdigit() for part in parts)
        or ("," not in text and int(parts[0]) < 1)
    ):
        raise ValueError(f"seeds must be a number of seeds (3) or a list of them (0,4,7), got {text!r}")
    return list(range(int(parts[0]))) if "," not in text else sorted({int(part) for part in parts})


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _live:
    """Bars for the runs under way, and a line for each one that is over."""

    def __init__(self, console: Console, runs: list[TokenRun]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar: ProgressBar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self.names = {each.name: f"{each.label} {each.name.removeprefix(each.label + '-')}" for each in runs}
        self.total = self.bar.add_task("[bold]all runs[/]", total=sum(each.training.steps for each in runs), note="")
        self.planned = {each.name: each.training.steps for each in runs}
        self.done: dict[str, int] = {}
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> _live:
        self.bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)

    def __call__(self, news: News) -> None:
        name = news.name
        if news.progress is not None and news.result is None:
            if name not in self.tasks:
                self.tasks[name] = self.bar.add_task(self.names[name], total=news.progress.steps, note="")
            score = news.progress.score
            note = "" if score is None else f"accuracy {score:.3f}"
            self.bar.update(self.tasks[name], completed=news.progress.step, note=note)
            self.done[name] = news.progress.step
        if news.result is not None:
            if name in self.tasks:
                self.bar.remove_task(self.tasks.pop(name))
            self.done[name] = self.planned[name]
            self.bar.console.print(f"  {self.names[name]}: {_in_words(news.result)}", highlight=False)
        self.bar.update(self.total, completed=sum(self.done.values()))


def _in_words(result: dict[str, Any]) -> str:
    from rich.markup import escape

    if "best" not in result:
        return f"[red]{result['status']}[/] {escape(result.get('error', ''))}"
    score = f"accuracy {result['best']:.3f}"
    if result["status"] == "solved":
        return f"[green]{score}[/], solved at step {result['steps']}, {result['seconds']:.0f} s"
    colour = "[red]diverged[/], best " if result["status"] == "diverged" else ""
    return f"{colour}{score} after {result['steps']} steps, {result['seconds']:.0f} s"


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


def _draw(console: Console, runs: list[TokenRun], rows: list[dict[str, Any]], directory: Path) -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        hint = "pip install 'swila[plots]'"
        console.print(f"no figures: they need matplotlib ({hint}); the same command then draws them", markup=False)
        return
    from swila.experiments.cdar_figures import draw_accuracy, draw_routing

    for paths in (draw_accuracy(runs, rows, directory), draw_routing(runs, directory)):
        if paths:
            console.print(f"figure in {paths[0]} (and {paths[1].name})", markup=False)
