"""What a task with tokens hands out, and what every such task is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from swila.random_streams import stream

IGNORE = -100  # a label that is neither trained nor scored, as in torch's cross_entropy


@dataclass(frozen=True)
class ExampleTensors:
    """Base of frozen dataclasses whose fields are tensors with a common first dimension, one row per example."""

    def __len__(self) -> int:
        return self._tensors()[0].shape[0]

    def take(self, index: Tensor | slice) -> Self:
        """Some of the examples."""
        return type(self)(*(tensor[index] for tensor in self._tensors()))

    def to(self, device: str | torch.device) -> Self:
        """The same on another device."""
        return type(self)(*(tensor.to(device) for tensor in self._tensors()))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All of them, one after another."""
        columns = zip(*(part._tensors() for part in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class Examples(ExampleTensors):
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

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"there are {len(self)} examples, got {row}")
        return self.inputs[row], self.labels[row]


class Task(Protocol):
    """A source of examples: the same for the same seed, unrelated for different splits."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens V, those that are no symbols of the task among them."""
        ...

    @property
    def length(self) -> int:
        """Tokens of the longest example."""
        ...

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


R = TypeVar("R", bound=ExampleTensors)


def draw(block: Callable[[int, torch.Generator], R], count: int, seed: int, *names: object, size: int = 512) -> R:
    """``count`` examples, block by block, each block whole and from a stream of its own.

    So memory stays small, and the first examples do not depend on how many follow.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    blocks = range((count + size - 1) // size)
    with torch.device("cpu"):  # whatever the default device is
        parts = [block(size, stream(seed, *names, i)) for i in blocks]
        return type(parts[0]).join(parts).take(slice(count))
