"""Where training batches come from."""

from __future__ import annotations

from typing import Protocol, TypeVar

Batch = TypeVar("Batch", covariant=True)


class BatchSource(Protocol[Batch]):
    """Batches as a pure function of the step.

    There is no loader state to save: a run that resumes at a step continues with the same data.
    """

    def batch(self, step: int) -> Batch:
        """Return the batch of update ``step``, counted from 0; the same for every call."""
        ...
