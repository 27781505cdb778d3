"""How a model is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swila.training.precision import PRECISIONS, Precision
from swila.training.schedule import LearningRate, Schedule


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of the optimizer, its learning rate, evaluation and early stopping.

    Attributes:
        steps: Maximum number of updates.
        batch_size: Number of examples of an update.
        lr: Peak learning rate.
        weight_decay: Weight decay of every parameter that its layer does not exempt (decay rates are exempt).
        betas: Decay rates of AdamW's moments.
        schedule: ``"constant"``, ``"cosine"`` down to ``min_lr``, or ``"cosine-epochs"``, the same but constant within
            an epoch.
        warmup_steps: Number of updates in which the learning rate grows linearly.
        warmup_from: Learning rate from which it grows.
        min_lr: Final value of a cosine, as a fraction of ``lr``.
        clip: Maximum norm of the gradient, or None.
        eval_every: Number of updates between evaluations.
        stop_at: Score (usually the accuracy) above which training ends early, or None.
        patience: Number of evaluations without a lower validation loss after which training ends, or None.
        precision: On a GPU ``"float32"``, ``"tf32"`` (float32 matrix products in TensorFloat-32), or ``"bfloat16"``
            (the same with autocast: activations in bfloat16, weights and recurrent states in float32).
        seed: Seed of the initial weights, the order of the data, dropout and noise.
    """

    steps: int
    batch_size: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    warmup_from: float = 0.0
    min_lr: float = 0.0
    clip: float | None = None
    eval_every: int = 100
    stop_at: float | None = 0.99
    patience: int | None = None
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        self.learning_rate(1)  # checks its settings
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

    @classmethod
    def over_epochs(cls, epochs: int, examples: int, batch_size: int, **options: Any) -> TrainingConfig:
        """Return a configuration for a number of epochs over the training examples, with an evaluation after each."""
        per_epoch = examples // batch_size
        return cls(epochs * per_epoch, batch_size, eval_every=per_epoch, **options)

    def learning_rate(self, steps_per_epoch: int) -> LearningRate:
        """Return the learning rate as a function of the step."""
        return LearningRate(
            self.lr, self.steps, self.schedule, self.warmup_steps, self.warmup_from, self.min_lr, steps_per_epoch
        )
