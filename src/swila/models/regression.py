"""A sequence layer by itself: vectors in, vectors out, nothing around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from swila.layers import make_mixer


@dataclass(frozen=True)
class RegressionModelConfig:
    """What a :class:`RegressionModel` is.

    Attributes:
        dim: of inputs and outputs.
        mixer: name of the sequence layer; see :data:`swila.layers.MIXERS`.
        mixer_options: its options.
    """

    dim: int
    mixer: str
    mixer_options: dict[str, Any] = field(default_factory=dict)


class RegressionModel(nn.Module):
    """One sequence layer, with no embedding, residual, norm or MLP around it."""

    def __init__(self, config: RegressionModelConfig) -> None:
        super().__init__()
        self.config = config
        self.mixer = make_mixer(config.mixer, config.dim, layer_idx=0, **config.mixer_options)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, dim]`` to the same."""
        return self.mixer(x)[0]

    def parts(self) -> list[nn.Module]:
        """What a compiler may take as wholes."""
        return [self.mixer]

    def state_size(self, length: int = 1) -> int:
        """Scalars of state after ``length`` tokens."""
        return self.mixer.state_size(length)

    def num_parameters(self) -> int:
        """Trained scalars."""
        return sum(p.numel() for p in self.parameters())
