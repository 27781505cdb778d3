"""Sweeps: many runs, several at a time, each in its own directory and resumed from its checkpoint."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from swila.training import Failure, Interrupts, Outcome, Progress, RunDirectory, RunResult, interrupts_as_flag
from swila.training.json_files import first_difference, read_json, write_json


class Training(Protocol):
    """An active run; :class:`swila.experiments.loop.Trainer` is one."""

    @property
    def ended(self) -> bool:
        """Whether training has ended, so that :meth:`finish` is next."""
        ...

    def advance(self) -> Progress:
        """Run a few updates."""
        ...

    def save(self) -> None:
        """Write a checkpoint."""
        ...

    def finish(self) -> RunResult:
        """Write and return the result."""
        ...

    def close(self) -> None:
        """Free all resources."""
        ...


class Run(Protocol):
    """A run of a sweep; picklable, with a unique name."""

    @property
    def name(self) -> str:
        """Name of the run's directory within that of the sweep."""
        ...

    def config(self) -> dict[str, Any]:
        """Return everything that determines the run, as JSON."""
        ...

    def begin(self, directory: RunDirectory, device: str, tensorboard: bool) -> Training:
        """Start the training in its directory, or resume it."""
        ...


class News(NamedTuple):
    """A report of a sweep: the progress of a run, or its result; neither while the run prepares its data."""

    name: str
    progress: Progress | None = None
    result: Outcome | None = None


def claim(out: Path, experiment: dict[str, Any]) -> None:
    """Create the directory of an experiment; ValueError if it exists and belongs to another one."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        known = out / "experiment.json"
        if not known.exists():
            if any(path.suffix != ".tmp" for path in out.iterdir()):
                raise ValueError(f"out {out} is not empty and holds no experiment; choose another directory")
            write_json(known, experiment)
        if difference := first_difference(read_json(known), experiment):
            raise ValueError(f"out {out} holds another experiment ({difference}); choose another directory")
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ValueError(f"out must be a directory that can be written to, got {out}: {error.strerror}") from None


def run_all(
    runs: Sequence[Run],
    out: Path,
    *,
    device: str = "cpu",
    jobs: int = 1,
    threads: int = 1,
    fresh: bool = False,
    tensorboard: bool = True,
    report: Callable[[News], None] = lambda news: None,
) -> dict[str, Outcome]:
    """Train all runs, ``jobs`` at a time, and resume those that are unfinished.

    On a CPU the runs have processes of their own, each with ``threads`` torch threads (on which the last digits
    depend). On a GPU they take turns in this process, each with its own CUDA stream.

    Every directory is checked before the first run starts, so that mistakes are reported at once. A run that diverges,
    fails or is killed does not stop the others; its result has the status ``"diverged"`` or ``"failed"``. If
    interrupted (KeyboardInterrupt), the runs save checkpoints and stop; the same call resumes them.

    Args:
        runs: Runs with different names.
        out: Directory of the sweep.
        device: Device to train on.
        jobs: Number of concurrent runs.
        threads: Number of torch threads of each run.
        fresh: Whether to delete existing runs.
        tensorboard: Whether to write TensorBoard's event files.
        report: Function that is called with the progress and the results.

    Returns:
        The result of every run, by name.
    """
    names = [run.name for run in runs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"runs must have different names, got {repeated[0]} twice")
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out), _threads(threads):
        for run in runs:
            RunDirectory.check(out / run.name, run.config(), fresh)
        directories = {run.name: RunDirectory(out / run.name, run.config(), fresh) for run in runs}
        results: dict[str, Outcome] = {}
        for name, directory in directories.items():
            if (result := directory.result) is not None:
                results[name] = result
        for name, known in results.items():
            report(News(name, result=known))
        waiting = [run for run in runs if run.name not in results]
        jobs = min(jobs, len(waiting))
        if device == "cpu" and jobs > 1:
            from swila.experiments.workers import run_in_workers

            return results | run_in_workers(waiting, out, device, jobs, threads, tensorboard, report)
        return results | take_turns(waiting, out, device, jobs, tensorboard, report)


def take_turns(
    runs: Sequence[Run], out: Path, device: str, jobs: int, tensorboard: bool, report: Callable[[News], None]
) -> dict[str, Outcome]:
    """Train all runs in this process, ``jobs`` at a time, a few updates of each in turn.

    An exception becomes the result of its run. It is recorded in the run's directory, but the run stays unfinished:
    the same call resumes it.
    """
    waiting, results = list(runs), dict[str, Outcome]()
    active: dict[str, _Active] = {}
    with interrupts_as_flag() as interrupted:

        def tell(news: News) -> None:
            try:
                report(news)
            except KeyboardInterrupt:
                interrupted.set()

        try:
            while waiting or active:
                while waiting and len(active) < jobs:
                    run = waiting.pop(0)
                    active[run.name] = _Active(run, out / run.name, interrupted)
                    tell(News(run.name))
                for name, one in list(active.items()):
                    progress, result = one.turn(device, tensorboard)
                    if result is not None:
                        results[name] = result
                        del active[name]
                    tell(News(name, progress, result))
                if interrupted.is_set():
                    for one in active.values():
                        one.save()
                    raise KeyboardInterrupt
        finally:
            for one in active.values():
                one.close()
    return results


def note_failure(path: Path, error: Exception) -> None:
    """Record in a run's directory why it failed; errors of the recording are ignored, since other runs continue."""
    with suppress(OSError, ValueError):
        RunDirectory(path).note_failure(error)


class _Active:
    """An active run, whose exceptions become its result."""

    def __init__(self, run: Run, path: Path, interrupted: Interrupts) -> None:
        self.run, self.path, self.interrupted = run, path, interrupted
        self.directory: RunDirectory | None = None
        self.training: Training | None = None
        self.progress: Progress | None = None

    def turn(self, device: str, tensorboard: bool) -> tuple[Progress | None, Outcome | None]:
        """Run a few updates; return the progress, or the result if the run has ended."""
        try:
            if self.directory is None or self.training is None:
                self.directory = RunDirectory(self.path, self.run.config())
                self.directory.note_start()
                with suppress(KeyboardInterrupt), self.interrupted.at_once():  # making the data takes long
                    self.training = self.run.begin(self.directory, device, tensorboard)
            if self.training is None:
                return None, None
            if not self.training.ended:
                self.progress = progress = self.training.advance()
                self.directory.note_progress(progress)
                return progress, None
            return None, self.training.finish()
        except Exception as error:
            self.close()
            note_failure(self.path, error)
            return None, Failure(status="failed", error=f"{type(error).__name__}: {error}")

    def save(self) -> None:
        if self.training is None or self.directory is None:
            return
        try:
            self.training.save()
            if self.progress is not None:
                self.directory.note_progress(self.progress, now=True)
        except Exception as error:  # the other runs must still be saved
            note_failure(self.path, error)

    def close(self) -> None:
        if self.training is not None:
            self.training.close()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock a directory, so that no other command writes to it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield
        return
    descriptor = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ValueError(f"another command is using {out}; wait for it, or choose another directory") from None
    try:
        yield
    finally:
        os.close(descriptor)
