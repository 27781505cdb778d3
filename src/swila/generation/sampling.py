"""The next token from its logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Attributes:
        temperature: 0 takes the likeliest token; else logits are divided by it.
        top_k: only the k likeliest tokens are in the draw; None for all.
        top_p: only the likeliest tokens that together have this probability are; 1 for all.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, Real) or not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be 0 (the likeliest token) or more, got {self.temperature!r}")
        if self.top_k is not None and (not isinstance(self.top_k, int) or self.top_k is True or self.top_k < 1):
            raise ValueError(f"top_k must be at least 1, or None for all tokens, got {self.top_k!r}")
        if not isinstance(self.top_p, Real) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p!r}")

    def draw(self, logits: Tensor, generator: torch.Generator | None) -> Tensor:
        """Tokens ``[B]`` from float32 logits ``[B, vocabulary]``; nothing here waits for the device."""
        if self.temperature < torch.finfo(torch.float32).tiny:  # 0 in float32, or on its way there
            return logits.argmax(-1)
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature  # at most 0: no overflow
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, -1).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        if self.top_p < 1:
            ordered, order = logits.sort(-1, descending=True)
            probability = ordered.softmax(-1)
            beyond = probability.cumsum(-1) - probability >= self.top_p  # the likeliest always stays
            logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), float("-inf"))
        # the smallest of independent exponential times is a draw by their rates
        times = torch.empty_like(logits).exponential_(generator=generator)
        return (logits.softmax(-1) / times).argmax(-1)
