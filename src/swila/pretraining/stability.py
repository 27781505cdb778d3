"""Bad batches: losses and gradients that are not finite, and losses far above their average."""

from __future__ import annotations

import math
from dataclasses import dataclass

from swila.pretraining.recipe import StabilityRecipe

AVERAGED = 100  # updates that the running average remembers
TRUSTED = 20  # updates after which the running average counts


class BadBatchError(RuntimeError):
    """A bad batch stopped the run."""


@dataclass
class LossAverage:
    """The running average of the loss, part of the checkpointed state.

    Attributes:
        value: Average over about the last 100 good updates.
        count: Number of good updates.
    """

    value: float = 0.0
    count: int = 0

    def update(self, loss: float) -> None:
        """Include the loss of a good update."""
        self.count += 1
        self.value += (loss - self.value) / min(self.count, AVERAGED)


def why_bad(loss: float, norm: float, average: LossAverage, limits: StabilityRecipe) -> str | None:
    """Return why a batch is bad, or None if it is not.

    Args:
        loss: Loss of the batch.
        norm: Norm of its gradient.
        average: Average loss before it.
        limits: What counts as bad.
    """
    if not math.isfinite(loss):
        return f"its loss is {loss}"
    if not math.isfinite(norm):
        return f"the norm of its gradient is {norm}"
    if limits.max_loss_increase is None or average.count < TRUSTED:
        return None
    if loss > average.value + limits.max_loss_increase:
        return (
            f"its loss {loss:.3f} exceeds the average {average.value:.3f} of recent updates by more than "
            f"{limits.max_loss_increase:g}"
        )
    return None
