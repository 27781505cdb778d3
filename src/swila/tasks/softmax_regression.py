"""Sequences of vectors, and what one head of softmax attention makes of them (section 5.1 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from swila.random_streams import stream
from swila.tasks.examples import ExampleTensors, draw


@dataclass(frozen=True)
class Pairs(ExampleTensors):
    """Inputs and targets, both ``[N, T, D]``."""

    inputs: Tensor
    targets: Tensor


class Teacher(NamedTuple):
    """What is fixed for all examples: centres of clusters ``[C, D]`` and the projections ``[D, D]`` of the head."""

    centres: Tensor
    query: Tensor
    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class SoftmaxRegression:
    r"""Approximate a head of causal softmax attention with fixed random projections.

    A token belongs to one of C clusters, drawn uniformly and independently of the others::

        x_t = (μ_c + noise ε_t) / |μ_c + noise ε_t|,     μ_c, ε_t ~ N(0, I_D)
        o_t = Σ_{i<=t} softmax_i(q_t · k_i / τ) v_i,     q, k, v = Θ_q x, Θ_k x, Θ_v x,     τ = √D / 2

    with entries of Θ from N(0, 1). Centres and projections belong to the seed, not to the split.

    Attributes:
        dim: D.
        length: T.
        clusters: C.
        noise: spread of a cluster.
    """

    dim: int = 32
    length: int = 512
    clusters: int = 32
    noise: float = 0.5

    def __post_init__(self) -> None:
        for name in ("dim", "length", "clusters"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.noise >= 0:
            raise ValueError(f"noise must be at least 0, got {self.noise}")

    def teacher(self, seed: int = 0) -> Teacher:
        """Centres and projections."""
        D, generator = self.dim, stream(seed, self, "teacher")
        shapes = (self.clusters, D), (D, D), (D, D), (D, D)
        with torch.device("cpu"):
            return Teacher(*(torch.randn(shape, generator=generator) for shape in shapes))

    def examples(self, count: int, split: str, seed: int = 0, device: str | torch.device = "cpu") -> Pairs:
        """``count`` examples of a split; the first ones of a larger count are the same.

        The inputs are drawn on the CPU, whatever the device, and so are the same on all of them. The targets are
        computed on the device.
        """
        teacher = self.teacher(seed)

        def block(N: int, generator: torch.Generator) -> Pairs:
            cluster = torch.randint(self.clusters, (N, self.length), generator=generator)
            noise = torch.randn(N, self.length, self.dim, generator=generator)
            inputs = F.normalize(teacher.centres[cluster] + self.noise * noise, dim=-1).to(device)
            return Pairs(inputs, attention_targets(inputs, teacher))

        return draw(block, count, seed, self, split)


def attention_targets(inputs: Tensor, teacher: Teacher) -> Tensor:
    """The head's outputs for ``inputs [N, T, D]``, computed in float64: no setting of matrix products reaches them."""
    x = inputs.double()
    q, k, v = (x @ projection.to(x).T for projection in teacher[1:])
    logits = 2 / inputs.shape[-1] ** 0.5 * (q @ k.mT)  # q · k / τ with τ = √D / 2
    ahead = torch.ones(logits.shape[-2:], dtype=torch.bool, device=inputs.device).triu(1)
    return (logits.masked_fill(ahead, -torch.inf).softmax(-1) @ v).to(inputs.dtype)
