"""Sampling of the next token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Sampling settings.

    Attributes:
        temperature: Divisor of the logits; 0 selects the most likely token.
        top_k: Sample from the k most likely tokens; None for all.
        top_p: Sample from the most likely tokens whose probabilities sum to this value; 1 for all.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, Real) or not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be 0 (the most likely token) or more, got {self.temperature!r}")
        if self.top_k is not None and (not isinstance(self.top_k, int) or self.top_k is True or self.top_k < 1):
            raise ValueError(f"top_k must be at least 1, or None for all tokens, got {self.top_k!r}")
        if not isinstance(self.top_p, Real) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p!r}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken: the temperature is 0, or denormal in float32."""
        return self.temperature < torch.finfo(torch.float32).tiny

    def draw(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """Sample tokens ``[B]`` from float32 logits ``[B, vocabulary]``, without host synchronisation."""
        if self.greedy:
            return logits.argmax(-1)
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature  # at most 0, so that nothing overflows
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, -1).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        if self.top_p < 1:
            ordered, order = logits.sort(-1, descending=True)
            probability = ordered.softmax(-1)
            beyond = probability.cumsum(-1) - probability >= self.top_p  # the most likely token is always kept
            logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), float("-inf"))
        # the index of the smallest of independent exponentials with rates p is distributed as p
        times = torch.empty_like(logits).exponential_(generator=generator)
        return (logits.softmax(-1) / times).argmax(-1)
