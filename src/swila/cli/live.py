"""Progress of training in a terminal: a bar for each active run, a line for each that has ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swila.cli.time_left import TimeLeft, in_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as ProgressBar

    from swila.experiments.sweep import News
    from swila.experiments.training_run import TrainingRun
    from swila.training import Outcome

ON_A_GPU = 2  # concurrent runs


def train(
    console: Console,
    runs: list[TrainingRun],
    directory: Path,
    device: str,
    jobs: int | None,
    threads: int,
    fresh: bool,
    tensorboard: bool,
) -> dict[str, Outcome]:
    """Train all runs with live progress; if interrupted, say how to resume and exit with status 130."""
    from swila.experiments.sweep import run_all
    from swila.training import RunDirectory, terminate

    for run in runs:
        RunDirectory.check(directory / run.name, run.config(), fresh)
    there = 0 if fresh else sum((directory / run.name / "result.json").exists() for run in runs)
    jobs = jobs or (_cores() if device == "cpu" else ON_A_GPU)
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    console.print(f"{count} on {device}, {min(jobs, len(runs))} at a time, in {directory}", markup=False)
    if there:
        console.print(f"{there} of {len(runs)} runs have a result already (--fresh trains them again)")
    signal.signal(signal.SIGTERM, terminate)
    options: dict[str, Any] = {"device": device, "jobs": jobs, "threads": threads, "tensorboard": tensorboard}
    try:
        with Live(console, runs, jobs) as show:
            return run_all(runs, directory, fresh=fresh, report=show, **options)
    except KeyboardInterrupt:
        console.print(f"interrupted; the same command resumes the runs in {directory}", markup=False)
        raise SystemExit(130) from None


class Live:
    """Shows a bar for each active run, and a line for each that has ended."""

    def __init__(self, console: Console, runs: list[TrainingRun], jobs: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.bar: ProgressBar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TextColumn("{task.fields[left]}", style="progress.remaining"),
            console=console,
        )
        self.names = {each.name: f"{each.label} {each.name.removeprefix(each.label + '-')}" for each in runs}
        self.planned = {each.name: each.training.steps for each in runs}
        self.left = TimeLeft(self.planned, jobs)
        self.total = self.bar.add_task(
            "[bold]all runs[/]", total=sum(self.planned.values()), note="", left=in_words(None)
        )
        self.done: dict[str, int] = {}
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Live:
        self.bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)

    def __call__(self, news: News) -> None:
        name = news.name
        if news.result is None and name not in self.tasks:
            self.left.begun(name)
            self.tasks[name] = self.bar.add_task(
                self.names[name], total=self.planned[name], note="preparing", left=in_words(None)
            )
        if news.progress is not None and news.result is None:
            score = news.progress.score
            note = "" if score is None else f"{called(news.progress.metric)} {score:.3f}"
            self.bar.update(self.tasks[name], completed=news.progress.step, note=note)
            self.left.progressed(name, news.progress.step)
            self.done[name] = news.progress.step
        if news.result is not None:
            if name in self.tasks:
                self.bar.remove_task(self.tasks.pop(name))
            self.left.ended(name)
            self.done[name] = self.planned[name]
            self.bar.console.print(f"  {self.names[name]}: {_in_words(news.result)}", highlight=False)
        self.bar.update(self.total, completed=sum(self.done.values()), left=in_words(self.left.of_all()))
        for each, task in self.tasks.items():
            self.bar.update(task, left=in_words(self.left.of(each)))


def called(metric: str) -> str:
    """Return the name of a metric for display."""
    return {"r2": "R²"}.get(metric, metric)


def _in_words(result: Outcome) -> str:
    from rich.markup import escape

    if result["status"] == "failed":
        return f"[red]failed[/] {escape(result['error'])}"
    if result["best"] is None:
        return f"[red]{result['status']}[/] at step {result['steps']}"
    score = f"{called(result['metric'])} {result['best']:.3f}"
    if result["status"] == "solved":
        return f"[green]{score}[/], solved at step {result['steps']}, {result['seconds']:.0f} s"
    colour = "[red]diverged[/], best " if result["status"] == "diverged" else ""
    return f"{colour}{score} after {result['steps']} steps, {result['seconds']:.0f} s"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
