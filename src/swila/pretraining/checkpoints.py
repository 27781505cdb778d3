"""Checkpoints of a run: written in the background with ``torch.distributed.checkpoint``, complete or absent.

A checkpoint is written into ``checkpoints/.step-00000040.part`` and renamed to ``checkpoints/step-00000040`` once all
ranks have written their parts. A crash at any moment leaves the older checkpoints as they were.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException

from swila.pretraining.optimizer import MasterAdamW
from swila.pretraining.parallel import World
from swila.pretraining.recipe import CheckpointRecipe
from swila.training.json_files import read_json, write_json
from swila.training.run_directory import CHECKPOINTS as FOLDER

SESSION = "session.json"
ERRORS = (Exception, CheckpointException)  # DCP's own is not an Exception


class Checkpoints:
    """The checkpoints of a run directory.

    Args:
        directory: Directory of the run.
        world: The ranks.
        recipe: Which checkpoints are kept, and whether they are written in the background.
    """

    def __init__(self, directory: Path, world: World, recipe: CheckpointRecipe) -> None:
        self.folder, self.world, self.recipe = directory / FOLDER, world, recipe
        self._pending: tuple[int, Future[Any] | None] | None = None
        if world.main:
            self._clear()

    def save(self, optimizer: MasterAdamW, session: dict[str, Any]) -> None:
        """Write a checkpoint; in the background if the recipe says so, after the one before is complete.

        Args:
            optimizer: Optimizer with the master weights.
            session: The rest of the state, as JSON; ``session["step"]`` names the checkpoint, and
                ``session["updates"]`` is the number of updates of the optimizer.
        """
        self.wait()
        step = session["step"]
        if self.world.first(step in steps_of(self.folder)):  # other ranks may not see the new name yet
            return
        part = self.folder / f".step-{step:08d}.part"
        try:
            if self.world.main:
                part.mkdir(parents=True, exist_ok=True)
                write_json(part / SESSION, session)
            state = optimizer.state()
            if self.recipe.asynchronous:
                future: Any = dcp.async_save(state, checkpoint_id=part, process_group=self.world.saving)
                self._pending = step, getattr(future, "upload_completion", future)
                return
            dcp.save(state, checkpoint_id=part, process_group=self.world.saving)
        except ERRORS as error:
            raise self._failed(step, error) from error
        self._pending = step, None
        self.wait()

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, give it its name and delete old ones."""
        if self._pending is None:
            return
        (step, future), self._pending = self._pending, None
        try:
            if future is not None:
                future.result()
            if self.world.main:
                os.replace(self.folder / f".step-{step:08d}.part", path_of(self.folder, step))
        except ERRORS as error:
            raise self._failed(step, error) from error
        if self.world.main:
            self._delete_old()

    def close(self) -> None:
        """Let a checkpoint that is being written complete after an error of the run; an error of its own is dropped."""
        with suppress(OSError):
            self.wait()

    def written(self) -> bool:
        """Whether no checkpoint is being written on this rank."""
        return self._pending is None or self._pending[1] is None or self._pending[1].done()

    def failed(self) -> bool:
        """Whether this rank knows that the last checkpoint could not be written."""
        future = None if self._pending is None else self._pending[1]
        return future is not None and future.done() and future.exception() is not None

    def load(self, optimizer: MasterAdamW, step: int) -> dict[str, Any]:
        """Restore weights and moments, for any number of ranks, and return the rest of the state."""
        with reading(path_of(self.folder, step)) as path:
            dcp.load(optimizer.state(), checkpoint_id=path, process_group=self.world.saving)
            session = read_json(path / SESSION)
            optimizer.loaded(session["updates"])
        return session

    def _failed(self, step: int, error: BaseException) -> OSError:
        if self.world.main:
            shutil.rmtree(self.folder / f".step-{step:08d}.part", ignore_errors=True)
        last = max(steps_of(self.folder), default=None)
        kept = "there is no older one" if last is None else f"the checkpoint of step {last} is complete"
        return OSError(
            f"the checkpoint of step {step} could not be written to {self.folder} ({_first_line(error)}); {kept}. Free "
            "disk space, and the same command resumes the run"
        )

    def _clear(self) -> None:
        """Give complete checkpoints their names, and delete what a crash left behind."""
        for part in self.folder.glob(".step-*.part"):
            step = int(part.name.removeprefix(".step-").removesuffix(".part"))
            if _is_complete(part) and not path_of(self.folder, step).exists():
                os.replace(part, path_of(self.folder, step))
            else:
                shutil.rmtree(part)
        for old in self.folder.glob(".step-*.old"):
            shutil.rmtree(old)

    def _delete_old(self) -> None:
        steps = sorted(steps_of(self.folder))
        every = self.recipe.keep_every
        for step in steps[: -self.recipe.keep_last]:
            if every is None or step % every:
                gone = self.folder / f".step-{step:08d}.old"
                os.replace(path_of(self.folder, step), gone)  # atomic: a crash leaves no part under its name
                shutil.rmtree(gone)


def steps_of(folder: Path) -> list[int]:
    """Return the steps of the complete checkpoints in a folder, in order."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*") if _is_complete(path))


def path_of(folder: Path, step: int) -> Path:
    """Return the directory of the checkpoint of a step."""
    return folder / f"step-{step:08d}"


@contextmanager
def reading(path: Path) -> Iterator[Path]:
    """Turn errors in reading a checkpoint into a ValueError that names it; yield its directory."""
    try:
        yield path
    except ERRORS as error:
        raise ValueError(
            f"the checkpoint {path} cannot be read ({_first_line(error)}); delete it to use the one before"
        ) from error


def _is_complete(path: Path) -> bool:
    """Whether a checkpoint is complete: ``.metadata`` is written last."""
    return (path / ".metadata").exists() and (path / SESSION).exists()


def _first_line(error: BaseException) -> str:
    """Return the innermost reason of an error, in one line: DCP wraps the errors of all ranks."""
    reasons = getattr(error, "failures", None)
    if reasons:
        inner = next(iter(reasons.values()))
        error = inner[0] if isinstance(inner, tuple) else inner
    return str(error).strip().partition("\n")[0] or type(error).__name__
