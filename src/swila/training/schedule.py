"""Learning rates as functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Schedule = Literal["constant", "cosine", "cosine-epochs"]
SCHEDULES: tuple[str, ...] = get_args(Schedule)


def warmup(step: int, steps: int, start: float, end: float) -> float:
    """Return the learning rate at ``step < steps`` of a linear warm-up that reaches ``end`` at its last step."""
    return start + (end - start) * (step + 1) / steps


def cosine(done: float, floor: float = 0.0) -> float:
    """Return the share of the peak learning rate after the share ``done`` of the steps: from 1 down to ``floor``."""
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class LearningRate:
    """A linear warm-up, then a constant or falling learning rate.

    Attributes:
        lr: Peak learning rate.
        steps: Number of updates.
        schedule: ``"constant"``; ``"cosine"``, a cosine over the steps after the warm-up; or ``"cosine-epochs"``, a
            cosine over all epochs (the warm-up included) that is constant within each epoch.
        warmup_steps: Number of warm-up updates.
        warmup_from: Learning rate from which the warm-up starts.
        min_lr: Final value of a cosine, as a fraction of ``lr``.
        steps_per_epoch: Number of updates of an epoch, for ``"cosine-epochs"``.
    """

    lr: float
    steps: int
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    warmup_from: float = 0.0
    min_lr: float = 0.0
    steps_per_epoch: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "steps_per_epoch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.lr <= 1:
            raise ValueError(f"lr must be above 0 and at most 1, got {self.lr}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0, got {self.warmup_steps}")
        if not 0 <= self.warmup_from <= self.lr:
            raise ValueError(f"warmup_from must be between 0 and lr = {self.lr}, got {self.warmup_from}")
        if not 0 <= self.min_lr <= 1:
            raise ValueError(f"min_lr must be a fraction of lr between 0 and 1, got {self.min_lr}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")

    def at(self, step: int) -> float:
        """Return the learning rate of update ``step``, counted from 0."""
        if step < self.warmup_steps:
            return warmup(step, self.warmup_steps, self.warmup_from, self.lr)
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "cosine-epochs":
            done = step // self.steps_per_epoch / math.ceil(self.steps / self.steps_per_epoch)
        else:
            done = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)
        return self.lr * cosine(done, self.min_lr)
