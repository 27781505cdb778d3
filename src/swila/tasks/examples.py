"""What a task with tokens hands out, and what every such task is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from swila.tasks.streams import stream

IGNORE = -100  # a label that is neither trained nor scored, as in torch's cross_entropy


@dataclass(frozen=True)
class Examples:
    """Sequences of tokens with labels ``[N, T]``: a label is what to say at its own place, nothing is to be shifted.

    ``examples[i]`` is the pair of inputs and labels, so that a ``DataLoader`` takes it as it is.

    Attributes:
        inputs: tokens.
        labels: the token to predict there, or :data:`IGNORE`.
        context: which context is at work at each token, or -1; for looking into models, never shown to one.
    """

    inputs: Tensor
    labels: Tensor
    context: Tensor

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"there are {len(self)} examples, got {row}")
        return self.inputs[row], self.labels[row]

    def take(self, rows: Tensor | slice) -> Examples:
        """Some of the examples."""
        return Examples(self.inputs[rows], self.labels[rows], self.context[rows])

    def to(self, device: str | torch.device) -> Examples:
        """The same on another device."""
        return Examples(self.inputs.to(device), self.labels.to(device), self.context.to(device))

    @staticmethod
    def join(parts: list[Examples]) -> Examples:
        """All of them, one after another."""
        return Examples(
            torch.cat([part.inputs for part in parts]),
            torch.cat([part.labels for part in parts]),
            torch.cat([part.context for part in parts]),
        )


class Task(Protocol):
    """A source of examples: the same for the same seed, unrelated for different splits."""

    vocab_size: int
    length: int

    def examples(self, count: int, split: str, seed: int = 0) -> Examples:
        """``count`` examples of the split; the first ones of a larger count are the same."""
        ...


def distinct(count: int, chosen: int, pool: int, generator: torch.Generator) -> Tensor:
    """For each of ``count`` examples, ``chosen`` distinct numbers below ``pool``, uniform and in random order."""
    return torch.rand(count, pool, generator=generator).topk(chosen, dim=1).indices


def shuffled(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Independent random permutations along the last dimension."""
    return torch.rand(shape, generator=generator).argsort(-1)


def power_law_slots(count: int, chosen: int, slots: int, power: float, generator: torch.Generator) -> Tensor:
    """``chosen`` distinct slots of each example, in the order drawn, with ``p(i) ∝ i^(power - 1)`` for i = 1, 2, ...

    Successive draws without replacement are the largest of ``log p + Gumbel noise``.
    """
    log_p = (power - 1) * torch.arange(1, slots + 1).log()
    uniform = torch.rand(count, slots, generator=generator).clamp_min(1e-38)
    return (log_p - (-uniform.log()).log()).topk(chosen, dim=1).indices


def draw(
    block: Callable[[int, torch.Generator], Examples], count: int, seed: int, *names: object, size: int = 512
) -> Examples:
    """``count`` examples, block by block, each block whole and from a stream of its own.

    So memory stays small, and the first examples do not depend on how many follow.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    blocks = range((count + size - 1) // size)
    with torch.device("cpu"):  # whatever the default device is
        return Examples.join([block(size, stream(seed, *names, i)) for i in blocks]).take(slice(count))
