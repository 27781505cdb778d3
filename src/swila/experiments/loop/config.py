"""How a model is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

SCHEDULES = ("constant", "cosine", "cosine-epochs")
PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True)
class TrainingConfig:
    """AdamW, its schedule, and when to look and to stop.

    Attributes:
        steps: updates at most.
        batch_size: examples of an update.
        lr: learning rate at its highest.
        weight_decay: of every parameter but those a layer exempts (decay rates).
        betas: of AdamW.
        schedule: ``"constant"``, ``"cosine"`` to ``min_lr`` at every step, or ``"cosine-epochs"``, the same in steps of
            an epoch.
        warmup_steps: updates in which the learning rate grows linearly.
        warmup_from: the learning rate it grows from.
        min_lr: where a cosine ends, as a share of ``lr``.
        clip: largest norm of the gradient, or None.
        eval_every: steps between evaluations.
        stop_at: score (accuracy, as a rule) beyond which training ends early, or None.
        patience: evaluations without a lower validation loss after which training ends, or None.
        precision: on a GPU: ``"float32"``, ``"tf32"`` (matrix products of float32 numbers by TensorFloat-32), or
            ``"bfloat16"`` (the same, and autocast: activations in bfloat16; weights and recurrent states in float32).
        seed: of the initial weights, the order of the data, dropout and noise.
    """

    steps: int
    batch_size: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Literal["constant", "cosine", "cosine-epochs"] = "constant"
    warmup_steps: int = 0
    warmup_from: float = 0.0
    min_lr: float = 0.0
    clip: float | None = None
    eval_every: int = 100
    stop_at: float | None = 0.99
    patience: int | None = None
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.lr <= 1:
            raise ValueError(f"lr must be above 0 and at most 1, got {self.lr}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0, got {self.warmup_steps}")
        if not 0 <= self.warmup_from <= self.lr:
            raise ValueError(f"warmup_from must be between 0 and lr = {self.lr}, got {self.warmup_from}")
        if not 0 <= self.min_lr <= 1:
            raise ValueError(f"min_lr must be a share of lr between 0 and 1, got {self.min_lr}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be at least 0, got {self.weight_decay}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers of at least 0 and below 1, got {self.betas}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be above 0, or None for none, got {self.clip}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1, or None, got {self.patience}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")

    @classmethod
    def over_epochs(cls, epochs: int, examples: int, batch_size: int, **options: Any) -> TrainingConfig:
        """So many passes over so many examples, evaluated after each."""
        per_epoch = examples // batch_size
        return cls(epochs * per_epoch, batch_size, eval_every=per_epoch, **options)

    def lr_at(self, step: int, steps_per_epoch: int) -> float:
        """Learning rate of update ``step``, counted from 0."""
        warm = self.warmup_steps
        if step < warm:
            return self.warmup_from + (self.lr - self.warmup_from) * (step + 1) / warm
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "cosine-epochs":
            done = step // steps_per_epoch / math.ceil(self.steps / steps_per_epoch)
        else:
            done = (step - warm) / max(self.steps - warm, 1)
        return self.lr * (self.min_lr + (1 - self.min_lr) * 0.5 * (1 + math.cos(math.pi * done)))
