"""The block of the synthetic experiments: pre-norm, a sequence mixer, then an MLP (as in Zoology)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from swila.layers import SequenceMixer


class MLP(nn.Sequential):
    """``W_2 gelu(W_1 x + b_1) + b_2`` with an inner width of ``ratio`` times the outer; gelu exact, or by ``tanh``."""

    def __init__(self, hidden_size: int, ratio: int, gelu: Literal["none", "tanh"] = "none") -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, ratio * hidden_size)
        self.activation = nn.GELU(approximate=gelu)
        self.fc2 = nn.Linear(ratio * hidden_size, hidden_size)


class Block(nn.Module):
    """``x + mixer(norm(x))``, then ``x + MLP(norm(x))``, with dropout on what is added.

    Args:
        mixer: any sequence layer.
        mlp_ratio: inner over outer width of the MLP.
        dropout: probability.
        gelu: approximation of the MLP's activation, as torch names it.
    """

    def __init__(
        self,
        mixer: SequenceMixer,
        mlp_ratio: int = 4,
        dropout: float = 0.0,
        gelu: Literal["none", "tanh"] = "none",
    ) -> None:
        super().__init__()
        self.mixer_norm = nn.LayerNorm(mixer.hidden_size)
        self.mixer = mixer
        self.mlp_norm = nn.LayerNorm(mixer.hidden_size)
        self.mlp = MLP(mixer.hidden_size, mlp_ratio, gelu)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        cu_seqlens: Tensor | None = None,
        where: Tensor | None = None,
    ) -> Tensor:
        """``[B, T, hidden_size]`` to the same; the options are the mixer's, and a cache that is given is updated.

        With ``where`` only the output at these places is computed, ``[places, hidden_size]``: no other is needed of the
        last block. They are those where a bool ``[B, T]`` is true, or P of each row by their numbers, ``[B, P]``.
        """
        y, _, _ = self.mixer(self.mixer_norm(x), attention_mask, past_key_values, cu_seqlens=cu_seqlens)
        x = x + self.dropout(y)
        if where is not None:
            by_number = where.dtype != torch.bool
            x = x.gather(1, where.unsqueeze(-1).expand(-1, -1, x.shape[-1])).flatten(0, 1) if by_number else x[where]
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
