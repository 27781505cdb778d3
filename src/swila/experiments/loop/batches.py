"""Batches from examples in memory."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor

from swila.tasks import ExampleTensors
from swila.tasks.streams import stream

E = TypeVar("E", bound=ExampleTensors)


class ShuffledBatches(Generic[E]):
    """A :class:`~swila.training.BatchSource` over examples in memory, in a new order every epoch.

    The examples of all batches are laid down at the start, on the device.

    Args:
        examples: Training examples, on the device of the model.
        batch_size: Number of examples of a batch.
        steps: Number of batches.
        seed: Seed of the order.
        device: Device of the model.
    """

    def __init__(self, examples: E, batch_size: int, steps: int, seed: int, device: str | torch.device = "cpu") -> None:
        self.examples = examples
        self.steps_per_epoch = len(examples) // batch_size
        self.order = order_of_examples(len(examples), batch_size, steps, seed).to(device)

    def batch(self, step: int) -> E:
        """Return the batch of update ``step``, counted from 0."""
        return self.examples.take(self.order[step])

    def batch_at(self, counter: Tensor) -> E:
        """Return the batch of the update whose number is in ``counter`` (long ``[1]``, on the device).

        It does not synchronise with the host, so a CUDA graph can capture it. Indexing with a scalar tensor would.
        """
        return self.examples.take(self.order[counter][0])


def order_of_examples(count: int, batch_size: int, steps: int, seed: int) -> Tensor:
    """Return the indices of the examples of every batch, int32 ``[steps, batch_size]``.

    Every epoch is a random permutation of the ``count`` examples without the last ``count % batch_size`` of it.
    """
    per_epoch = count // batch_size
    epochs = -(-steps // per_epoch)
    orders = [
        torch.randperm(count, generator=stream(seed, "order", epoch), device="cpu")[: per_epoch * batch_size]
        for epoch in range(epochs)
    ]
    return torch.cat(orders).int().view(-1, batch_size)[:steps]
