"""What a model is trained for, and by which numbers it is judged."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swila.tasks import IGNORE, Examples


class Objective(Protocol):
    """A loss to train with, and metrics to report.

    Attributes:
        score: the metric by which runs are compared and stopped early; larger is better.
    """

    score: str

    def loss(self, model: nn.Module, batch: Examples) -> Tensor:
        """The loss of a batch, a scalar."""
        ...

    def evaluate(self, model: nn.Module, data: Examples, batch_size: int) -> dict[str, float]:
        """Metrics on held-out data."""
        ...


class TokenPrediction:
    """Cross-entropy at the labelled places; accuracy is the mean over examples of the share that is right."""

    score = "accuracy"

    def loss(self, model: nn.Module, batch: Examples) -> Tensor:
        """Mean over the labelled places of the batch."""
        where = batch.labels != IGNORE
        return F.cross_entropy(model(batch.inputs, where).float(), batch.labels[where])

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Examples, batch_size: int) -> dict[str, float]:
        """``accuracy`` and ``loss`` of the greedy answers."""
        right, loss, places = torch.zeros(len(data)), 0.0, 0
        for start in range(0, len(data), batch_size):
            batch = data.take(slice(start, start + batch_size))
            where = batch.labels != IGNORE
            logits, labels = model(batch.inputs, where).float(), batch.labels[where]
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            places += len(labels)
            hits = torch.zeros(where.shape, device=where.device)
            hits[where] = (logits.argmax(-1) == labels).float()
            right[start : start + batch_size] = (hits.sum(1) / where.sum(1)).cpu()
        return {"accuracy": right.mean().item(), "loss": loss / places}
