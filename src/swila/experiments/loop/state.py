"""The state of a run between two updates, beside weights, optimizer and generators."""

from __future__ import annotations

import math
from dataclasses import dataclass

from swila.training.result import Status


@dataclass
class TrainingState:
    """State of a run, saved in its checkpoints.

    Attributes:
        step: Number of updates so far.
        status: How training ended, None while it is unfinished.
        score: Score of the last evaluation.
        best: Highest score so far; with a validation set the lowest validation loss, negated.
        best_step: Step of that evaluation.
        counted: Number of updates since the last evaluation, whose training loss is summed.
        seconds: Duration up to the last checkpoint, summed over all sessions.
    """

    step: int = 0
    status: Status | None = None
    score: float | None = None
    best: float | None = None
    best_step: int = 0
    counted: int = 0
    seconds: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether training has ended."""
        return self.status is not None

    def note(self, value: float) -> bool:
        """Record the value of an evaluation (larger is better), and return whether it is the best so far."""
        improved = math.isfinite(value) and (self.best is None or value > self.best)
        if improved:
            self.best, self.best_step = value, self.step
        return improved
