"""One update of the weights: micro-batches, the norm of the gradient, clipping and the optimizer."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from swila.data import TokenBatch
from swila.pretraining.batches import Batches
from swila.pretraining.initialization import seed_of
from swila.pretraining.optimizer import MasterAdamW
from swila.pretraining.parallel import World
from swila.pretraining.recipe import Recipe
from swila.pretraining.stability import LossAverage, why_bad
from swila.training.compilation import compiling


class Update(NamedTuple):
    """What an update found; the same on every rank.

    Attributes:
        loss: Mean cross-entropy of the batch in nats per token, without load balancing.
        auxiliary_loss: Load-balancing loss.
        gradient_norm: Norm of the gradient before clipping.
        lr: Learning rate.
        bad: Why the batch is bad, or None. The weights are not changed by a bad batch.
        stop: Whether some rank was asked to stop.
        failed: Whether some rank found that its checkpoint could not be written.
    """

    loss: float
    auxiliary_loss: float
    gradient_norm: float
    lr: float
    bad: str | None
    stop: bool
    failed: bool


class Updates:
    """The updates of a run, each a function of its number and the weights alone.

    Gradients are those of the mean loss over all labels of the batch. FSDP averages gradients over the ranks, so a
    rank's loss is its sum divided by the number of labels per rank.

    Args:
        model: The sharded model, in training mode.
        optimizer: Its optimizer.
        batches: This rank's share of the batches.
        recipe: The recipe.
        world: The ranks.
    """

    def __init__(self, model: Any, optimizer: MasterAdamW, batches: Batches, recipe: Recipe, world: World):
        self.model, self.optimizer, self.batches, self.recipe, self.world = model, optimizer, batches, recipe, world
        self.learning_rate = recipe.learning_rate()
        self.replicas = world.size // (recipe.execution.shard_size or world.size)

    def run(self, step: int, average: LossAverage, stop: bool = False, failed: bool = False) -> Update:
        """Run update ``step``, counted from 0.

        Args:
            step: Number of the update.
            average: Average loss of earlier updates, which decides what is a bad batch.
            stop: Whether this rank was asked to stop.
            failed: Whether this rank found that its checkpoint could not be written.
        """
        device, recipe = self.world.device, self.recipe
        batch = self.batches.batch(step)
        share = torch.tensor(batch.labels / self.world.size).to(device, non_blocking=True)
        losses = torch.zeros(2, dtype=torch.float64, device=device)
        for micro in self.batches.micro_batches(batch):
            torch.manual_seed(seed_of(recipe.seed, "update", step, micro.first))
            tokens = to_device(micro.tokens, device)
            with compiling():
                out = self.model(
                    tokens.input_ids,
                    shift_labels=tokens.labels,
                    cu_seqlens=tokens.cu_seqlens,
                    num_items_in_batch=share,
                    use_cache=False,
                )
                out.loss.backward()
            self.optimizer.accumulate()
            losses += torch.stack([out.loss.detach(), out.auxiliary_loss]).double()
        gradients = self.optimizer.gradients()
        squares = torch.stack(torch._foreach_norm(gradients)).double().square().sum()
        flags = torch.tensor([stop, failed], dtype=torch.float64).to(device, non_blocking=True)
        totals = self.world.sum(torch.cat([losses / self.world.size, squares[None] / self.replicas, flags]))
        loss, auxiliary, norm = totals[0] - totals[1], totals[1], math.sqrt(totals[2])
        lr = self.learning_rate.at(step)
        bad = why_bad(loss, norm, average, recipe.stability)
        if bad is None:
            clip = recipe.optimizer.clip
            if clip is not None and norm > clip:
                torch._foreach_mul_(gradients, clip / norm)
            self.optimizer.step(lr)
        self.optimizer.clear()
        return Update(loss, auxiliary, norm, lr, bad, totals[3] > 0, totals[4] > 0)


def to_device(batch: TokenBatch, device: torch.device) -> TokenBatch:
    """Return a batch on a device; copies to a GPU do not wait."""
    if device.type != "cuda":
        return batch
    inputs, labels = (part.pin_memory().to(device, non_blocking=True) for part in (batch.input_ids, batch.labels))
    bounds = batch.cu_seqlens
    return TokenBatch(inputs, labels, None if bounds is None else bounds.pin_memory().to(device, non_blocking=True))
