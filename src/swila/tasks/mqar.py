"""Multi-query associative recall from *Zoology* (Arora et al., 2024), from which CDAR is derived."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from swila.tasks.examples import IGNORE, Examples, distinct, draw, power_law_slots


@dataclass(frozen=True)
class MQAR:
    r"""Key-value pairs, followed by keys whose values are to be recalled.

    Tokens: 0 is filler, keys come from the lower half of the vocabulary, values from the upper. An example with 2
    pairs, a vocabulary of 16 and length 12::

        inputs    3 11  6  8  |  6  0  0  0  3  0  0  0
        labels    .  .  .  .  |  8  .  .  .  11 .  .  .

    The query zone has slots of two tokens, a key and an empty position. Slots are drawn from a power law, so that most
    queries follow soon after the pairs. The j-th key has the j-th slot drawn. The query zone has no values: the label
    is at the key.

    Attributes:
        vocab_size: Vocabulary size V; keys are 1 ... V/2 - 1, values V/2 ... V - 1.
        num_pairs: Number of pairs, each queried once.
        length: Number of tokens T of an example.
        power: Exponent a of ``p(slot i) ∝ i^(a - 1)``; 1 is uniform.
        random_filler: Whether empty positions hold random tokens instead of 0.
    """

    vocab_size: int = 8192
    num_pairs: int = 8
    length: int = 64
    power: float = 0.01
    random_filler: bool = False

    def __post_init__(self) -> None:
        if self.vocab_size % 2 or self.num_pairs > self.vocab_size // 2 - 1:
            raise ValueError(
                f"vocab_size must be even and leave {self.num_pairs} keys in its lower half, got {self.vocab_size}"
            )
        if self.num_pairs < 1 or self.length < 4 * self.num_pairs:
            raise ValueError(f"length must be at least 4 * num_pairs = {4 * self.num_pairs}, got {self.length}")

    def examples(self, count: int, split: str, seed: int = 0) -> Examples:
        """Return ``count`` examples of a split; see :class:`~swila.tasks.examples.Task`."""
        return draw(self._block, count, seed, self, split)

    def _block(self, N: int, generator: torch.Generator) -> Examples:
        K, half, zone = self.num_pairs, self.vocab_size // 2, 2 * self.num_pairs
        keys = 1 + distinct(N, K, half - 1, generator)
        values = half + distinct(N, K, half, generator)
        slots = power_law_slots(N, K, (self.length - zone) // 2, self.power, generator)
        inputs = torch.zeros(N, self.length, dtype=torch.long)
        inputs[:, 0:zone:2], inputs[:, 1:zone:2] = keys, values
        at = zone + 2 * slots
        inputs.scatter_(1, at, keys)
        labels = torch.full_like(inputs, IGNORE).scatter_(1, at, values)
        if self.random_filler:
            noise = torch.randint(self.vocab_size, inputs.shape, generator=generator)
            inputs = torch.where(inputs == 0, noise, inputs)
        context = torch.zeros_like(inputs)
        return Examples(inputs, labels, context)
