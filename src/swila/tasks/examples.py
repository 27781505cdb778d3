"""Examples in memory, the protocol of a task, and random draws that tasks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from swila.tasks.streams import stream

IGNORE = -100  # label of positions without a loss or a score, as in torch's cross_entropy


@dataclass(frozen=True)
class ExampleTensors:
    """Base of frozen dataclasses whose fields are tensors with the examples along their first dimension."""

    def __len__(self) -> int:
        return self._tensors()[0].shape[0]

    def take(self, index: Tensor | slice) -> Self:
        """Return some of the examples."""
        return type(self)(*(tensor[index] for tensor in self._tensors()))

    def to(self, device: str | torch.device) -> Self:
        """Return the examples on another device."""
        return type(self)(*(tensor.to(device) for tensor in self._tensors()))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate examples."""
        columns = zip(*(part._tensors() for part in parts), strict=True)
        return cls(*(torch.cat(column) for column in columns))

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class Examples(ExampleTensors):
    """Sequences of tokens with labels, each ``[N, T]``; labels are aligned with the inputs and need no shift.

    ``examples[i]`` is the pair of inputs and labels, so that a ``DataLoader`` accepts the examples as a dataset.

    Attributes:
        inputs: Tokens.
        labels: Token to predict at each position, or :data:`IGNORE`.
        context: Current context at each token, or -1; for the analysis of models, not an input.
    """

    inputs: Tensor
    labels: Tensor
    context: Tensor

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} examples, got index {index}")
        return self.inputs[index], self.labels[index]


class Task(Protocol):
    """A source of examples: the same for the same seed, independent for different splits."""

    @property
    def vocab_size(self) -> int:
        """Vocabulary size V, special tokens included."""
        ...

    @property
    def length(self) -> int:
        """Number of tokens of the longest example."""
        ...

    def examples(self, count: int, split: str, seed: int = 0) -> Examples:
        """Return ``count`` examples of the split; a larger count begins with the same examples."""
        ...


def distinct(count: int, chosen: int, pool: int, generator: torch.Generator) -> Tensor:
    """Draw ``chosen`` distinct numbers below ``pool`` for each of ``count`` examples, uniform and in random order."""
    return torch.rand(count, pool, generator=generator).topk(chosen, dim=1).indices


def shuffled(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return independent random permutations along the last dimension."""
    return torch.rand(shape, generator=generator).argsort(-1)


def power_law_slots(count: int, chosen: int, slots: int, power: float, generator: torch.Generator) -> Tensor:
    """Draw ``chosen`` distinct slots of each example in order, with ``p(i) ∝ i^(power - 1)`` for i = 1, 2, ...

    Successive draws without replacement are the largest values of ``log p + Gumbel noise``.
    """
    log_p = (power - 1) * torch.arange(1, slots + 1).log()
    uniform = torch.rand(count, slots, generator=generator).clamp_min(1e-38)
    return (log_p - (-uniform.log()).log()).topk(chosen, dim=1).indices


R = TypeVar("R", bound=ExampleTensors)


def draw(block: Callable[[int, torch.Generator], R], count: int, seed: int, *names: object, size: int = 512) -> R:
    """Draw ``count`` examples in whole blocks, each from its own random stream.

    This bounds the memory, and makes the first examples independent of their number.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    blocks = range((count + size - 1) // size)
    with torch.device("cpu"):  # whatever the default device is
        parts = [block(size, stream(seed, *names, i)) for i in blocks]
        return type(parts[0]).join(parts).take(slice(count))
