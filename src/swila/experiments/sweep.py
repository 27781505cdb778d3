"""Many runs from one command: side by side, each in its directory, going on where they stopped."""

from __future__ import annotations

import json
import multiprocessing
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from swila.training import Progress, RunDirectory
from swila.training.run_directory import first_difference, write_json


class Run(Protocol):
    """A run a sweep can take: picklable, with a name of its own."""

    @property
    def name(self) -> str:
        """Its directory within the sweep's."""
        ...

    def config(self) -> dict[str, Any]:
        """All that determines it, as JSON."""
        ...

    def execute(
        self, directory: RunDirectory, device: str, report: Callable[[Progress], None], tensorboard: bool
    ) -> dict[str, Any]:
        """Run to the end and return the result."""
        ...


class News(NamedTuple):
    """What a sweep reports: a run's progress, or its end."""

    name: str
    progress: Progress | None = None
    result: dict[str, Any] | None = None


def claim(out: Path, experiment: dict[str, Any]) -> None:
    """Make a directory for an experiment, or find it made for the same one; before anything is run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        known = out / "experiment.json"
        if not known.exists():
            if any(out.iterdir()):
                raise ValueError(f"out {out} is not empty and holds no experiment; choose another directory")
            write_json(known, experiment)
        if difference := first_difference(json.loads(known.read_text()), experiment):
            raise ValueError(f"out {out} holds another experiment ({difference}); choose another directory")
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ValueError(f"out must be a directory that can be written to, got {out}: {error.strerror}") from None


def environments(runs: Sequence[Run], out: Path) -> list[dict[str, Any]]:
    """Where the runs were made, each place once: runs that were there already may come from another commit."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        where = RunDirectory(out / run.name, run.config()).environment
        found.setdefault(json.dumps({key: value for key, value in where.items() if key != "date"}), where)
    return list(found.values())


def run_all(
    runs: Sequence[Run],
    out: Path,
    *,
    device: str = "cpu",
    jobs: int = 1,
    fresh: bool = False,
    tensorboard: bool = True,
    report: Callable[[News], None] = lambda news: None,
) -> dict[str, dict[str, Any]]:
    """Run all of them, ``jobs`` at a time, each in a process of its own with its share of the cores.

    Every directory is claimed before the first run starts, so that a mistake shows at once. A run that diverges or
    fails does not stop the others: its result has the status ``"diverged"`` or ``"failed"``. Interrupted
    (KeyboardInterrupt), the runs save and stop; the same call goes on.

    Returns:
        The result of every run, by name.
    """
    if len({run.name for run in runs}) != len(runs):
        raise ValueError("runs must have different names")
    directories = {run.name: RunDirectory(out / run.name, run.config(), fresh) for run in runs}
    results = {name: result for name, d in directories.items() if (result := d.result) is not None}
    for name, result in results.items():
        report(News(name, result=result))
    waiting = [run for run in runs if run.name not in results]
    if not waiting:
        return results
    jobs = max(1, min(jobs, len(waiting)))
    if jobs == 1:
        for run in waiting:

            def follow(progress: Progress, name: str = run.name) -> None:
                report(News(name, progress))

            results[run.name] = result = _execute(run, out, device, tensorboard, follow)
            report(News(run.name, result=result))
        return results
    return results | _side_by_side(waiting, out, device, jobs, tensorboard, report)


def _side_by_side(
    runs: Sequence[Run], out: Path, device: str, jobs: int, tensorboard: bool, report: Callable[[News], None]
) -> dict[str, dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    news, stop = context.SimpleQueue(), context.Event()
    threads = max(1, torch.get_num_threads() // jobs)
    results: dict[str, dict[str, Any]] = {}

    def listen() -> None:
        while (item := news.get()) is not None:
            report(item)

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with ProcessPoolExecutor(jobs, context, _start_worker, (news, stop, threads)) as pool:
        futures: dict[Future[dict[str, Any]], str] = {
            pool.submit(_execute_in_worker, run, out, device, tensorboard): run.name for run in runs
        }
        try:
            for future in as_completed(futures):
                name = futures[future]
                results[name] = future.result()
                report(News(name, result=results[name]))
        except KeyboardInterrupt:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        finally:
            stop.set()
    news.put(None)
    listener.join()
    return results


def _execute(run: Run, out: Path, device: str, tensorboard: bool, report: Callable[[Progress], None]) -> dict[str, Any]:
    directory = RunDirectory(out / run.name, run.config())
    try:
        return run.execute(directory, device, report, tensorboard)
    except Exception as error:
        # not written down: the cause may be mended, and the run then goes on
        return {"status": "failed", "error": f"{type(error).__name__}: {error}"}


_worker: tuple[Any, Any] | None = None


def _start_worker(news: Any, stop: Any, threads: int) -> None:
    global _worker
    _worker = news, stop
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent tells its workers to stop


def _execute_in_worker(run: Run, out: Path, device: str, tensorboard: bool) -> dict[str, Any]:
    assert _worker is not None
    news, stop = _worker
    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        if stop.is_set():
            raise KeyboardInterrupt
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            news.put(News(run.name, progress))

    try:
        return _execute(run, out, device, tensorboard, report)
    except KeyboardInterrupt:
        return {"status": "interrupted"}
