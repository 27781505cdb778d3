"""Many runs from one command: side by side, each in its directory, going on where they stopped."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from swila.training import Failure, Interrupts, Outcome, Progress, RunDirectory, RunResult, interrupts_as_flag
from swila.training.json_files import first_difference, read_json, write_json


class Training(Protocol):
    """A run under way; :class:`swila.training.Trainer` is one."""

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do but to :meth:`finish`."""
        ...

    def advance(self) -> Progress:
        """Go on for a moment."""
        ...

    def save(self) -> None:
        """Write down where it stands."""
        ...

    def finish(self) -> RunResult:
        """Write down and return what came out."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class Run(Protocol):
    """A run a sweep can take: picklable, with a name of its own."""

    @property
    def name(self) -> str:
        """Its directory within the sweep's."""
        ...

    def config(self) -> dict[str, Any]:
        """All that determines it, as JSON."""
        ...

    def begin(self, directory: RunDirectory, device: str, tensorboard: bool) -> Training:
        """The training in its directory, to begin or to go on with."""
        ...


class News(NamedTuple):
    """What a sweep reports: a run's progress, or its end; neither while it gets ready."""

    name: str
    progress: Progress | None = None
    result: Outcome | None = None


def claim(out: Path, experiment: dict[str, Any]) -> None:
    """Make a directory for an experiment, or find it made for the same one; before anything is run."""
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


def distinct(environments: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where runs were made, each place once: runs that were there already may come from another commit."""
    found: dict[str, dict[str, Any]] = {}
    for where in environments:
        found.setdefault(json.dumps({key: value for key, value in where.items() if key != "date"}), where)
    return list(found.values())


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
    """Run all of them, ``jobs`` at a time: on a CPU in processes, each with ``threads`` of torch (on which the last
    digits depend); on a GPU taking turns in this one, each with a stream of its own.

    Every directory is checked before the first run starts, so that a mistake shows at once. A run that diverges, fails
    or is killed does not stop the others: its result has the status ``"diverged"`` or ``"failed"``. Interrupted
    (KeyboardInterrupt), the runs save and stop; the same call goes on.

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
    """Run all in this process, ``jobs`` of them under way at a time, a moment each in turn.

    What goes wrong becomes the result of its run. It is noted in the run's directory, but the run is not over: once the
    cause is mended, the same call goes on with it.
    """
    waiting, results = list(runs), dict[str, Outcome]()
    under_way: dict[str, _UnderWay] = {}
    with interrupts_as_flag() as interrupted:

        def tell(news: News) -> None:
            try:
                report(news)
            except KeyboardInterrupt:
                interrupted.set()

        try:
            while waiting or under_way:
                while waiting and len(under_way) < jobs:
                    run = waiting.pop(0)
                    under_way[run.name] = _UnderWay(run, out / run.name, interrupted)
                    tell(News(run.name))
                for name, one in list(under_way.items()):
                    progress, result = one.turn(device, tensorboard)
                    if result is not None:
                        results[name] = result
                        del under_way[name]
                    tell(News(name, progress, result))
                if interrupted.is_set():
                    for one in under_way.values():
                        one.save()
                    raise KeyboardInterrupt
        finally:
            for one in under_way.values():
                one.close()
    return results


def note_failure(path: Path, error: Exception) -> None:
    """Note in a run's directory why it failed, if that can be done: the others are to go on."""
    with suppress(OSError, ValueError):
        RunDirectory(path).note_failure(error)


class _UnderWay:
    """A run in its directory, whatever becomes of it."""

    def __init__(self, run: Run, path: Path, interrupted: Interrupts) -> None:
        self.run, self.path, self.interrupted = run, path, interrupted
        self.directory: RunDirectory | None = None
        self.training: Training | None = None
        self.progress: Progress | None = None

    def turn(self, device: str, tensorboard: bool) -> tuple[Progress | None, Outcome | None]:
        """A moment of the run: its progress, and its result if that was the end."""
        try:
            if self.directory is None or self.training is None:
                self.directory = RunDirectory(self.path, self.run.config())
                self.directory.note_start()
                with suppress(KeyboardInterrupt), self.interrupted.at_once():  # data take a while to make
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
        except Exception as error:  # the others are still to be saved
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
    """Two commands must not write into one directory at a time."""
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
        raise ValueError(f"another command is at work in {out}; wait for it, or choose another directory") from None
    try:
        yield
    finally:
        os.close(descriptor)
