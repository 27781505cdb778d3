"""Worker processes that train one run after another.

Each worker has a pipe. The parent sends runs, and closes its end to stop the worker; the worker sends progress and
results. If a worker dies, only its current run fails. If the parent dies, its workers save checkpoints and exit. A
worker that is still preparing its data is killed instead of waited for.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from swila.experiments.sweep import News, Run, note_failure, take_turns
from swila.training import Failure, Outcome

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess


class _Worker:
    """A process, the parent's end of its pipe, its current run, and whether that run trains already."""

    def __init__(self, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.run: Run | None = None
        self.trains = False
        self.process: SpawnProcess = context.Process(target=_work, args=(theirs, *arguments), daemon=True)
        # a child inherits ignored signals: Ctrl-C in a terminal reaches both, but only the parent may act on it
        usual = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.process.start()
        finally:
            for number, handler in usual.items():
                signal.signal(number, handler)
        theirs.close()

    def take(self, run: Run) -> None:
        """Send a run to the worker."""
        self.run, self.trains = run, False
        self.pipe.send(run)


def run_in_workers(
    runs: Sequence[Run],
    out: Path,
    device: str,
    jobs: int,
    threads: int,
    tensorboard: bool,
    report: Callable[[News], None],
) -> dict[str, Outcome]:
    """Train all runs, ``jobs`` at a time; see :func:`swila.experiments.sweep.run_all`."""
    waiting, results, started = list(runs), dict[str, Outcome](), 0
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_Worker(out, device, threads, tensorboard, started > 0))
                started += 1
                workers[-1].take(waiting.pop(0))
            for pipe in wait([worker.pipe for worker in workers]):
                worker = next(worker for worker in workers if worker.pipe is pipe)
                assert worker.run is not None
                try:
                    news: News = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    error = RuntimeError(f"the process died (exit code {worker.process.exitcode})")
                    note_failure(out / worker.run.name, error)
                    news = News(worker.run.name, result=Failure(status="failed", error=str(error)))
                    workers.remove(worker)
                worker.trains |= news.progress is not None
                report(news)
                if news.result is None:
                    continue
                results[news.name] = news.result
                if worker not in workers:
                    continue
                if waiting:
                    run = waiting.pop(0)
                    try:
                        worker.take(run)
                    except OSError:  # it died between two runs: another worker takes the run
                        waiting.insert(0, run)
                        workers.remove(worker)
                else:
                    workers.remove(worker)
                    worker.pipe.close()
                    worker.process.join()
    finally:
        for worker in workers:
            worker.pipe.close()  # tells it to save and stop
            if not worker.trains:  # it prepares its data: there is nothing to save, and it does not check the pipe
                worker.process.kill()
        for worker in workers:
            worker.process.join()
    return results


def _work(pipe: Connection, out: Path, device: str, threads: int, tensorboard: bool, quiet: bool) -> None:
    torch.set_num_threads(threads)
    if quiet:  # the first worker logs the warnings
        logging.getLogger("swila").setLevel(logging.ERROR)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop
    told = 0.0
    try:
        while True:
            run: Run = pipe.recv()

            def report(news: News) -> None:
                nonlocal told
                if pipe.poll():  # nothing is sent during a run: the parent has closed its end, or died
                    raise KeyboardInterrupt
                if news.result is not None or time.monotonic() - told > 0.2:
                    told = time.monotonic()
                    pipe.send(news)

            take_turns([run], out, device, 1, tensorboard, report)
    except (KeyboardInterrupt, EOFError, OSError):
        pass
