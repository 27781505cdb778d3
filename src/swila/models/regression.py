"""A model that is a single sequence layer on vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from swila.layers import make_mixer


@dataclass(frozen=True)
class RegressionModelConfig:
    """Configuration of a :class:`RegressionModel`.

    Attributes:
        dim: Width of inputs and outputs.
        mixer: Name of the sequence layer; see :data:`swila.layers.MIXERS`.
        mixer_options: Options of the sequence layer.
    """

    dim: int
    mixer: str
    mixer_options: dict[str, Any] = field(default_factory=dict)


class RegressionModel(nn.Module):
    """One sequence layer, without embedding, residual connection, norm or MLP."""

    def __init__(self, config: RegressionModelConfig) -> None:
        super().__init__()
        self.config = config
        self.mixer = make_mixer(config.mixer, config.dim, layer_idx=0, **config.mixer_options)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, T, dim]`` to the same shape."""
        return self.mixer(x)[0]

    def parts(self) -> list[nn.Module]:
        """Return the modules to compile separately."""
        return [self.mixer]

    def state_size(self, length: int = 1) -> int:
        """Return the number of scalars in the state after ``length`` tokens."""
        return self.mixer.state_size(length)

    def num_parameters(self) -> int:
        """Return the number of trainable scalars."""
        return sum(p.numel() for p in self.parameters())
