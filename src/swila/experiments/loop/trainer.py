"""The training loop of one run: the same seed gives the same numbers, interrupted or not."""

from __future__ import annotations

import gc
from collections.abc import Callable

from torch import nn

from swila.experiments.loop.config import TrainingConfig
from swila.experiments.loop.isolation import Isolation
from swila.experiments.loop.objective import Objective
from swila.experiments.loop.session import Session
from swila.tasks import ExampleTensors
from swila.training.interrupts import interrupts_as_flag
from swila.training.progress import Progress
from swila.training.result import RunResult
from swila.training.run_directory import RunDirectory


class Trainer:
    """Trains one model in one run directory.

    :meth:`fit` trains to the end. Several trainers can take turns in one process: call :meth:`advance` until
    :attr:`ended`, then :meth:`finish`. On a GPU, the work they launch overlaps.

    With a validation set, the weights with the lowest validation loss are selected, and evaluated on the test set at
    the end. Without, every evaluation is on the test set, and the best one counts.

    If interrupted (by Ctrl-C, or by a KeyboardInterrupt from ``report``), :meth:`fit` completes the step, saves a
    checkpoint and raises KeyboardInterrupt. A new trainer with the same arguments resumes from the checkpoint, and
    gives the same numbers as a run without interruption. See :class:`~swila.training.RunResult` for how a run ends.

    Args:
        make_model: Function that builds the model; called with torch's generators seeded.
        objective: Loss and metrics.
        train: Training examples.
        test: Test examples.
        config: Settings of the training.
        directory: Run directory.
        device: Device to train on.
        report: Function that :meth:`fit` calls after every update (on a GPU: after several).
        tensorboard: Whether to write TensorBoard's event files, if TensorBoard is installed.
        validation: Validation examples, or None.
        captured: Whether to replay updates from a CUDA graph; by default on a GPU.
        save_every: Minimum number of seconds between checkpoints.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        objective: Objective,
        train: ExampleTensors,
        test: ExampleTensors,
        config: TrainingConfig,
        directory: RunDirectory,
        device: str = "cpu",
        report: Callable[[Progress], None] | None = None,
        tensorboard: bool = True,
        validation: ExampleTensors | None = None,
        captured: bool | None = None,
        save_every: float = 20.0,
    ) -> None:
        if len(train) < config.batch_size:
            raise ValueError(f"batch_size must be at most the {len(train)} training examples, got {config.batch_size}")
        self.make_model, self.objective, self.config, self.directory = make_model, objective, config, directory
        self.isolation = Isolation(device, config.precision)
        self.device = self.isolation.device
        self.captured = self.device.type == "cuda" if captured is None else captured
        self.train, self.test, self.validation = train, test, validation
        self.report = report or (lambda progress: None)
        self.tensorboard, self.save_every = tensorboard, save_every
        self._session: Session | None = None

    def fit(self) -> RunResult:
        """Train to the end, from the last checkpoint if there is one; writes and returns the result."""
        if (result := self.directory.result) is not None:
            return result
        try:
            with interrupts_as_flag() as interrupted:
                self.directory.note_start()
                while not self.ended:
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
    def ended(self) -> bool:
        """Whether training has ended."""
        return self.session.state.ended

    @property
    def session(self) -> Session:
        """The session, started or resumed on first use."""
        if self._session is None:
            with self.isolation.entered():
                self._session = Session(self)
        return self._session

    def advance(self) -> Progress:
        """Run one update, or on a GPU several, and the evaluation after it if one is due."""
        session = self.session
        with self.isolation.entered():
            session.advance()
        return Progress(session.state.step, self.config.steps, session.state.score, self.objective.score)

    def save(self) -> None:
        """Write a checkpoint."""
        session = self.session
        with self.isolation.entered():
            session.save()

    def finish(self) -> RunResult:
        """Evaluate the selected weights, write the result and return it; call once training has ended."""
        session = self.session
        with self.isolation.entered():
            result = session.result()
        self.directory.finish(result)
        self.close()
        return result

    def close(self) -> None:
        """Free the model and close the files."""
        if self._session is not None:
            self._session.writer.close()
            self._session = None
            if self.device.type == "cuda":  # a compiled model is a reference cycle that holds its graph's memory
                gc.collect()
