"""Context-dependent associative recall (section 5.2 of the paper)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from swila.tasks.examples import IGNORE, Examples, distinct, draw, power_law_slots, shuffled


@dataclass(frozen=True)
class CDAR:
    r"""A key has a different value in each context; a context is named once and must be remembered from then on.

    Tokens: 0 is filler, 1 ... C name the contexts, keys fill the rest of the lower half of the vocabulary, values are
    its upper half. An example with 2 contexts of 3 keys, a vocabulary of 32 and length 32::

        inputs    1  9 21  4 30  7 17    2  7 25  9 16  4 28    2  7  0  4  0  9  0  0  0    1  9  0  7  0  0  0  4  0
        labels    .  .  .  .  .  .  .    .  .  .  .  .  .  .    . 25  . 28  . 16  .  .  .    . 21  . 17  .  .  . 30  .
                  context 1              context 2              queries of 2                 queries of 1

    Context zone, ``C (1 + 2K)`` tokens: for each context in random order its token, then its K pairs in random order.
    Query zone: ``S = (T - C (1 + 2K) - C) / 2`` slots of a key and an empty position, and the C context tokens. Of the
    slots, ``C K`` are drawn from a power law and sorted; the first K belong to the first queried context, and so on
    (contexts and keys in a new random order, each pair queried once), and a context's token precedes its first key.
    The query zone has no values: the label is at the key.

    A model that recalls the values of a key, but not the current context, has an accuracy of 1/C.

    Attributes:
        vocab_size: Vocabulary size V.
        num_contexts: Number of contexts C.
        num_keys: Number of keys K, shared by all contexts; the ``C K`` values of an example are distinct.
        length: Number of tokens T of an example; unused positions at the end hold filler.
        power: Exponent a of ``p(slot i) ∝ i^(a - 1)``; 1 is uniform.
        context_pool: Number of context tokens from which the C of an example are drawn; by default all examples have
            the same C.
    """

    vocab_size: int = 8192
    num_contexts: int = 4
    num_keys: int = 32
    length: int = 1024
    power: float = 0.01
    context_pool: int | None = None

    def __post_init__(self) -> None:
        C, K, half = self.num_contexts, self.num_keys, self.vocab_size // 2
        if not math.isfinite(self.power):
            raise ValueError(f"power must be a finite number, got {self.power}")
        if C < 1 or K < 1:
            raise ValueError(f"num_contexts and num_keys must be at least 1, got {C} and {K}")
        if self.pool < C:
            raise ValueError(f"context_pool must be at least num_contexts = {C}, got {self.context_pool}")
        if self.vocab_size % 2 or half - 1 - self.pool < K or half < C * K:
            raise ValueError(
                f"vocab_size must be even, with {K} keys beside {self.pool} contexts in its lower half and "
                f"{C * K} values in its upper, got {self.vocab_size}"
            )
        if self.num_slots < C * K:
            raise ValueError(
                f"length must be at least {C * (2 + 4 * K)} for {C} contexts of {K} keys, got {self.length}"
            )

    @property
    def pool(self) -> int:
        """Number of context tokens."""
        return self.num_contexts if self.context_pool is None else self.context_pool

    @property
    def num_slots(self) -> int:
        """Number of query slots S."""
        return (self.length - self.num_contexts * (2 + 2 * self.num_keys)) // 2

    @property
    def num_queries(self) -> int:
        """Number of labels of an example, ``C K``."""
        return self.num_contexts * self.num_keys

    @property
    def plateau(self) -> float:
        """Accuracy of a model that recalls values but not the context, 1/C."""
        return 1 / self.num_contexts

    def examples(self, count: int, split: str, seed: int = 0) -> Examples:
        """Return ``count`` examples of a split; see :class:`~swila.tasks.examples.Task`."""
        return draw(self._block, count, seed, self, split)

    def _block(self, N: int, generator: torch.Generator) -> Examples:
        C, K, half, T = self.num_contexts, self.num_keys, self.vocab_size // 2, self.length
        names = 1 + distinct(N, C, self.pool, generator)  # in the order of the context zone
        keys = self.pool + 1 + distinct(N, K, half - 1 - self.pool, generator)
        values = (half + distinct(N, C * K, half, generator)).view(N, C, K)  # [context, key]

        order = shuffled((N, C, K), generator)  # of the pairs within each context
        pairs = torch.stack([keys[:, None].expand(N, C, K).gather(2, order), values.gather(2, order)], -1)
        blocks = torch.cat([names.unsqueeze(-1), pairs.flatten(2)], -1)  # [N, C, 1 + 2K]
        zone = C * (1 + 2 * K)

        asked = shuffled((N, C), generator)  # group g queries context asked[g]
        which = shuffled((N, C, K), generator)  # its keys, in this order
        slots = power_law_slots(N, C * K, self.num_slots, self.power, generator).sort(1).values.view(N, C, K)
        group = torch.arange(C)[None, :, None]
        key_at = zone + 2 * slots + group + 1  # each group so far adds one token, that of its context
        name_at = zone + 2 * slots[..., 0] + group[..., 0]
        answers = values.gather(1, asked.unsqueeze(-1).expand(N, C, K)).gather(2, which)

        inputs = torch.zeros(N, T, dtype=torch.long)
        inputs[:, :zone] = blocks.flatten(1)
        inputs.scatter_(1, name_at, names.gather(1, asked))
        inputs.scatter_(1, key_at.flatten(1), keys[:, None].expand(N, C, K).gather(2, which).flatten(1))
        labels = torch.full_like(inputs, IGNORE).scatter_(1, key_at.flatten(1), answers.flatten(1))

        time = torch.arange(T)
        current = (time >= name_at.unsqueeze(-1)).sum(1) - 1  # index of the current group, -1 before the first
        context = names.gather(1, asked).gather(1, current.clamp_min(0)).masked_fill(current < 0, -1)
        context[:, :zone] = names.repeat_interleave(1 + 2 * K, dim=1)
        return Examples(inputs, labels, context)
