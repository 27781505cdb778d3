"""Sequences of vectors, and the outputs of a softmax attention head on them (section 5.1 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from swila.tasks.examples import ExampleTensors, draw
from swila.tasks.streams import stream


@dataclass(frozen=True)
class Pairs(ExampleTensors):
    """Inputs and targets, both ``[N, T, D]``."""

    inputs: Tensor
    targets: Tensor


class Teacher(NamedTuple):
    """Parameters that all examples share: cluster centres ``[C, D]`` and projections ``[D, D]`` of the head."""

    centres: Tensor
    query: Tensor
    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class SoftmaxRegression:
    r"""Approximation of a causal softmax attention head with fixed random projections.

    Each token belongs to one of C clusters, drawn uniformly and independently::

        x_t = (μ_c + noise ε_t) / |μ_c + noise ε_t|,     μ_c, ε_t ~ N(0, I_D)
        o_t = Σ_{i<=t} softmax_i(q_t · k_i / τ) v_i,     q, k, v = Θ_q x, Θ_k x, Θ_v x,     τ = √D / 2

    with entries of Θ from N(0, 1). Centres and projections depend on the seed, but not on the split.

    Attributes:
        dim: Dimension D of the vectors.
        length: Number of tokens T.
        clusters: Number of clusters C.
        noise: Standard deviation of the tokens of a cluster, before normalisation.
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
        """Return centres and projections."""
        D, generator = self.dim, stream(seed, self, "teacher")
        shapes = (self.clusters, D), (D, D), (D, D), (D, D)
        with torch.device("cpu"):
            return Teacher(*(torch.randn(shape, generator=generator) for shape in shapes))

    def examples(self, count: int, split: str, seed: int = 0, device: str | torch.device = "cpu") -> Pairs:
        """Return ``count`` examples of a split; a larger count begins with the same examples.

        The inputs are drawn on the CPU, so they are the same for every device. The targets are computed on the device.
        """
        teacher = self.teacher(seed)

        def block(N: int, generator: torch.Generator) -> Pairs:
            cluster = torch.randint(self.clusters, (N, self.length), generator=generator)
            noise = torch.randn(N, self.length, self.dim, generator=generator)
            inputs = F.normalize(teacher.centres[cluster] + self.noise * noise, dim=-1).to(device)
            return Pairs(inputs, attention_targets(inputs, teacher))

        return draw(block, count, seed, self, split)


def attention_targets(inputs: Tensor, teacher: Teacher) -> Tensor:
    """Return the head's outputs for ``inputs [N, T, D]``, computed in float64, which no precision setting affects."""
    x = inputs.double()
    q, k, v = (x @ projection.to(x).T for projection in teacher[1:])
    logits = 2 / inputs.shape[-1] ** 0.5 * (q @ k.mT)  # q · k / τ with τ = √D / 2
    ahead = torch.ones(logits.shape[-2:], dtype=torch.bool, device=inputs.device).triu(1)
    return (logits.masked_fill(ahead, -torch.inf).softmax(-1) @ v).to(inputs.dtype)
