"""Objectives: losses to train with, and metrics to evaluate with."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swila.tasks import IGNORE, AutomatonExamples, Examples, Pairs, legality, total_variation


class Objective(Protocol):
    """A loss to train with, and metrics to evaluate with.

    A loss that is captured in a CUDA graph must not have shapes that depend on data. If the objective has a module
    ``criterion`` that computes the loss from outputs and targets, it is compiled on a GPU.

    Attributes:
        score: Name of the metric by which runs are compared and stopped early; larger is better.
    """

    score: str

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch, a scalar."""
        ...

    def evaluate(self, model: nn.Module, data: Any, batch_size: int) -> dict[str, float]:
        """Return metrics on held-out data; ``loss`` must be one of them if weights are selected by it."""
        ...


class CrossEntropy(nn.Module):
    """Mean cross-entropy, computed in float32 or float64; labels of :data:`IGNORE` do not count."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of ``logits [N, vocab_size]`` and ``labels [N]``."""
        full = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(full, labels, ignore_index=IGNORE)


class TokenPrediction:
    """Cross-entropy at the labelled positions; the accuracy of each example is averaged over the examples.

    Args:
        labels: Number of labels of every example, or None if it varies. With a fixed number, logits are computed at the
            labelled positions without a synchronisation with the host.
    """

    score = "accuracy"

    def __init__(self, labels: int | None = None) -> None:
        self.labels = labels
        self.criterion = CrossEntropy()

    def loss(self, model: nn.Module, batch: Examples) -> Tensor:
        """Return the mean over the labelled positions of the batch."""
        where = batch.labels != IGNORE
        if self.labels is None:
            return self.criterion(model(batch.inputs, where), batch.labels[where])
        positions, exists = positions_of(where, self.labels)
        labels = batch.labels.gather(1, positions).masked_fill(~exists, IGNORE)
        return self.criterion(model(batch.inputs, positions), labels.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Examples, batch_size: int) -> dict[str, float]:
        """Return ``accuracy`` of the most likely tokens, and ``loss``."""
        right, loss, positions = torch.zeros(len(data)), 0.0, 0
        for start in range(0, len(data), batch_size):
            batch = data.take(slice(start, start + batch_size))
            where = batch.labels != IGNORE
            logits, labels = model(batch.inputs, where).float(), batch.labels[where]
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            positions += len(labels)
            hits = torch.zeros(where.shape, device=where.device)
            hits[where] = (logits.argmax(-1) == labels).float()
            right[start : start + batch_size] = (hits.sum(1) / where.sum(1)).cpu()
        return {"accuracy": right.mean().item(), "loss": loss / positions}


class LegalPrediction:
    """Cross-entropy of the next symbol; accuracy is the fraction of positions where the most likely token is legal.

    All metrics are means over the labelled positions of the whole set (RegBench).
    """

    score = "accuracy"

    def __init__(self) -> None:
        self.criterion = CrossEntropy()

    def loss(self, model: nn.Module, batch: AutomatonExamples) -> Tensor:
        """Return the mean over the labelled positions of the batch."""
        return self.criterion(model(batch.inputs).flatten(0, 1), batch.labels.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: AutomatonExamples, batch_size: int) -> dict[str, float]:
        """Return ``accuracy``, ``loss``, and ``tv``: total variation distance from the automaton's distribution."""
        sums = torch.zeros(4, dtype=torch.float64, device=data.inputs.device)
        for start in range(0, len(data), batch_size):
            batch = data.take(slice(start, start + batch_size))
            logits = model(batch.inputs).float()
            scored = (batch.labels != IGNORE).double()
            loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum", ignore_index=IGNORE)
            legal = (legality(logits.argmax(-1), batch.legal) * scored).sum()
            distance = (total_variation(logits.softmax(-1), batch.legal) * scored).sum()
            sums += torch.stack([legal, loss.double(), distance, scored.sum()])
        legal, loss, distance, positions = sums.tolist()
        return {"accuracy": legal / positions, "loss": loss / positions, "tv": distance / positions}


class Regression:
    """Mean squared error over all positions and dims; the score is R² = 1 - SSE/SST, pooled over the whole set.

    SST is about the mean of each output dim over all sequences and positions.
    """

    score = "r2"

    def __init__(self) -> None:
        self.criterion = nn.MSELoss()

    def loss(self, model: nn.Module, batch: Pairs) -> Tensor:
        """Return the mean over the batch."""
        return self.criterion(model(batch.inputs), batch.targets)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Pairs, batch_size: int) -> dict[str, float]:
        """Return ``r2`` and ``loss``, summed in float64."""
        D = data.targets.shape[-1]
        errors, total, squares = torch.zeros(3, D, dtype=torch.float64, device=data.inputs.device)
        for start in range(0, len(data), batch_size):
            batch = data.take(slice(start, start + batch_size))
            targets = batch.targets.double()
            errors += (model(batch.inputs).double() - targets).square().sum((0, 1))
            total += targets.sum((0, 1))
            squares += targets.square().sum((0, 1))
        count = data.targets[..., 0].numel()
        variation = squares.sum() - (total.square() / count).sum()
        return {"r2": (1 - errors.sum() / variation).item(), "loss": (errors.sum() / (count * D)).item()}


def positions_of(where: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the first ``count`` positions of each sequence where ``where [B, T]`` is true, and which of them exist.

    Both are ``[B, count]``, whatever the data; a sequence with fewer positions is padded with 0.
    """
    rank = where.cumsum(1)
    slot = torch.where(
        where & (rank <= count), rank - 1, count
    )  # positions beyond the count share one slot, which is dropped
    time = torch.arange(where.shape[1], device=where.device)
    positions = torch.zeros(len(where), count + 1, dtype=torch.long, device=where.device)
    positions = positions.scatter(1, slot, time.expand(where.shape))[:, :count]
    return positions, torch.arange(count, device=where.device) < rank[:, -1:]
