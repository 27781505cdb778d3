"""The loss on the validation set."""

from __future__ import annotations

from typing import Any

import torch

from swila.data import PackedSequences, StreamSequences
from swila.pretraining.parallel import World
from swila.pretraining.updates import to_device
from swila.training.compilation import compiling


class Validation:
    """Computes the loss on sequences spread evenly over the validation set, divided among the ranks.

    Args:
        sequences: Sequences of the validation set.
        count: Most sequences to use.
        micro_batch: Number of sequences of a forward call.
        world: The ranks.
    """

    def __init__(
        self, sequences: StreamSequences | PackedSequences, count: int, micro_batch: int, world: World
    ) -> None:
        count = min(count, len(sequences))
        self.sequences, self.micro_batch, self.world = sequences, micro_batch, world
        self.indices = [i * len(sequences) // count for i in range(count)]

    @torch.no_grad()
    def loss(self, model: Any) -> float:
        """Return the mean cross-entropy in nats per token; the same on every rank."""
        training, device, size = model.training, self.world.device, self.micro_batch
        model.eval()
        totals = torch.zeros(2, dtype=torch.float64, device=device)
        round_ = size * self.world.size
        for start in range(self.world.rank * size, -(-len(self.indices) // round_) * round_, round_):
            # all calls have the same shape, and every rank makes as many: collectives of FSDP need it
            mine = self.indices[start : start + size]
            padded = [*mine, *[self.indices[0]] * (size - len(mine))]
            batch = to_device(self.sequences.batch(padded), device)
            kept = batch.labels.view(size, -1).clone()
            kept[len(mine) :] = -100
            labels = kept.view_as(batch.labels)
            count = (labels != -100).sum()
            with compiling():
                mean = model(
                    batch.input_ids,
                    shift_labels=labels,
                    cu_seqlens=batch.cu_seqlens,
                    logits_to_keep=1,  # the loss alone, without the logits of all tokens
                    use_cache=False,
                ).loss
            totals += torch.stack([mean.double() * count, count.double()])
        model.train(training)
        total, labels_seen = self.world.sum(totals)
        return total / labels_seen
