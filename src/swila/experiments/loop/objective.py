"""What a model is trained for, and by which numbers it is judged."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swila.tasks import IGNORE, AutomatonExamples, Examples, Pairs, legality, total_variation


class Objective(Protocol):
    """A loss to train with, and metrics to report.

    A loss that is to be captured in a CUDA graph has no shapes that depend on data.

    Attributes:
        score: the metric by which runs are compared and stopped early; larger is better.

    A module ``criterion`` that makes the loss of outputs and targets, if it has one, is compiled on a GPU.
    """

    score: str

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch, a scalar."""
        ...

    def evaluate(self, model: nn.Module, data: Any, batch_size: int) -> dict[str, float]:
        """Metrics on held-out data; ``loss`` among them if weights are to be chosen by it."""
        ...


class CrossEntropy(nn.Module):
    """Mean cross-entropy in float32 at least, of logits of any precision; labels of :data:`IGNORE` do not count."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Of ``logits [N, vocab_size]`` and ``labels [N]``."""
        full = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(full, labels, ignore_index=IGNORE)


class TokenPrediction:
    """Cross-entropy at the labelled places; accuracy is the mean over examples of the share that is right.

    Args:
        labels: of every example, the same number for all; where it is known, logits are computed at these places alone
            without asking the data how many there are. None for any number.
    """

    score = "accuracy"

    def __init__(self, labels: int | None = None) -> None:
        self.labels = labels
        self.criterion = CrossEntropy()

    def loss(self, model: nn.Module, batch: Examples) -> Tensor:
        """Mean over the labelled places of the batch."""
        where = batch.labels != IGNORE
        if self.labels is None:
            return self.criterion(model(batch.inputs, where), batch.labels[where])
        places, there = places_of(where, self.labels)
        labels = batch.labels.gather(1, places).masked_fill(~there, IGNORE)
        return self.criterion(model(batch.inputs, places), labels.flatten())

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


class LegalPrediction:
    """Cross-entropy of the next symbol; accuracy is the share of places where the likeliest token is a legal one.

    All metrics are means over the labelled places of the whole set (RegBench).
    """

    score = "accuracy"

    def __init__(self) -> None:
        self.criterion = CrossEntropy()

    def loss(self, model: nn.Module, batch: AutomatonExamples) -> Tensor:
        """Mean over the labelled places of the batch."""
        return self.criterion(model(batch.inputs).flatten(0, 1), batch.labels.flatten())

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: AutomatonExamples, batch_size: int) -> dict[str, float]:
        """``accuracy``, ``loss``, and ``tv``: total variation between the model's law and the automaton's."""
        sums = torch.zeros(4, dtype=torch.float64, device=data.inputs.device)
        for start in range(0, len(data), batch_size):
            batch = data.take(slice(start, start + batch_size))
            logits = model(batch.inputs).float()
            scored = (batch.labels != IGNORE).double()
            loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum", ignore_index=IGNORE)
            legal = (legality(logits.argmax(-1), batch.legal) * scored).sum()
            distance = (total_variation(logits.softmax(-1), batch.legal) * scored).sum()
            sums += torch.stack([legal, loss.double(), distance, scored.sum()])
        legal, loss, distance, places = sums.tolist()
        return {"accuracy": legal / places, "loss": loss / places, "tv": distance / places}


class Regression:
    """Mean squared error over all places and dims; the score is R² = 1 - SSE/SST, pooled over the whole set.

    SST is about the mean of each output dim over all sequences and places.
    """

    score = "r2"

    def __init__(self) -> None:
        self.criterion = nn.MSELoss()

    def loss(self, model: nn.Module, batch: Pairs) -> Tensor:
        """Mean over the batch."""
        return self.criterion(model(batch.inputs), batch.targets)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: Pairs, batch_size: int) -> dict[str, float]:
        """``r2`` and ``loss``, summed in float64."""
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


def places_of(where: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first ``count`` places of each row where ``where [B, T]`` is true, in order, and which of them there are.

    Both are ``[B, count]``, whatever the data: a row with fewer is filled up.
    """
    rank = where.cumsum(1)
    slot = torch.where(where & (rank <= count), rank - 1, count)  # what is left over goes to a slot of its own
    time = torch.arange(where.shape[1], device=where.device)
    places = torch.zeros(len(where), count + 1, dtype=torch.long, device=where.device)
    places = places.scatter(1, slot, time.expand(where.shape))[:, :count]
    return places, torch.arange(count, device=where.device) < rank[:, -1:]
