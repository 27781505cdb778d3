"""A small training loop: the same seed gives the same numbers, interrupted or not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from swila.experiments.loop.config import TrainingConfig
from swila.experiments.loop.objective import Objective
from swila.experiments.loop.place import Place
from swila.experiments.loop.session import Session
from swila.tasks import Rows
from swila.training.interrupts import interrupts_as_flag
from swila.training.run_directory import RunDirectory


class Progress(NamedTuple):
    """Where a run stands, for whoever shows it."""

    step: int
    steps: int
    score: float | None  # at the last evaluation
    metric: str = "score"


class Trainer:
    """Trains one model in one run directory.

    :meth:`fit` trains to the end. Several trainers can take turns in one process: :meth:`advance` until it is
    :attr:`over`, then :meth:`finish`. On a GPU, what they enqueue runs side by side.

    With ``validation`` examples the weights with the lowest loss on them are kept, and judged on ``test`` at the end.
    Without, the test set is looked at in every evaluation, and the best of them counts.

    Interrupted (Ctrl-C, or a KeyboardInterrupt from ``report``) :meth:`fit` ends the step, saves and lets go. Made anew
    with the same arguments it goes on from there, and ends with the numbers it would have had without the interruption.
    A run ends as ``"finished"``; as ``"solved"`` beyond ``stop_at``; as ``"stopped"`` out of patience; and as
    ``"diverged"`` when its loss is no longer finite.

    Args:
        make_model: builds the model; called with torch's generators seeded.
        objective: loss and metrics.
        train: the training examples.
        test: the examples it is judged by.
        config: how to train.
        directory: of the run.
        device: where.
        report: called by :meth:`fit` after every step (on a GPU: after several).
        tensorboard: whether to write TensorBoard's files where it is installed.
        validation: the examples by which weights are chosen.
        captured: whether updates are replayed from a CUDA graph; by default on a GPU.
        save_every: seconds between checkpoints, at least.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        objective: Objective,
        train: Rows,
        test: Rows,
        config: TrainingConfig,
        directory: RunDirectory,
        device: str = "cpu",
        report: Callable[[Progress], None] | None = None,
        tensorboard: bool = True,
        validation: Rows | None = None,
        captured: bool | None = None,
        save_every: float = 20.0,
    ) -> None:
        if len(train) < config.batch_size:
            raise ValueError(f"batch_size must be at most the {len(train)} training examples, got {config.batch_size}")
        self.make_model, self.objective, self.config, self.directory = make_model, objective, config, directory
        self.place = Place(device, config.precision)
        self.device = self.place.device
        self.captured = self.device.type == "cuda" if captured is None else captured
        self.train, self.test, self.validation = train, test, validation
        self.report = report or (lambda progress: None)
        self.tensorboard, self.save_every = tensorboard, save_every
        self._session: Session | None = None

    def fit(self) -> dict[str, Any]:
        """Train to the end, from the last checkpoint if there is one; returns the result and writes it down."""
        if (result := self.directory.result) is not None:
            return result
        try:
            with interrupts_as_flag() as interrupted:
                self.directory.note_start()
                while not self.over:
                    progress = self.advance()
                    self.directory.note_progress(progress)
                    try:
                        self.report(progress)
                    except KeyboardInterrupt:
                        interrupted.set()
                    if interrupted.is_set():
                        self.save()
                        raise KeyboardInterrupt
            return self.finish()
        finally:
            self.close()

    @property
    def over(self) -> bool:
        """Whether training is over."""
        return self.session.state["status"] is not None

    @property
    def session(self) -> Session:
        """The run under way; begun, or taken up again, when it is first asked for."""
        if self._session is None:
            with self.place.entered():
                self._session = Session(self)
        return self._session

    def advance(self) -> Progress:
        """Train a little: a step, or on a GPU several, and the evaluation after it if one is due."""
        session = self.session
        with self.place.entered():
            session.advance()
        return Progress(session.state["step"], self.config.steps, session.state["score"], self.objective.score)

    def save(self) -> None:
        """Write a checkpoint."""
        session = self.session
        with self.place.entered():
            session.save()

    def finish(self) -> dict[str, Any]:
        """Judge the chosen weights, write the result down and return it; once training is over."""
        session = self.session
        with self.place.entered():
            result = session.result()
        self.directory.finish(result)
        self.close()
        return result

    def close(self) -> None:
        """Let go of the model and the files."""
        if self._session is not None:
            self._session.writer.close()
            self._session = None
            if self.device.type == "cuda":  # a compiled model is a cycle, and holds the memory of its graph
                gc.collect()
