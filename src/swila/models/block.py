"""The block of the synthetic experiments: pre-norm, a sequence mixer, then an MLP (as in Zoology)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from swila.layers import SequenceMixer


class MLP(nn.Sequential):
    """``W_2 gelu(W_1 x + b_1) + b_2`` with inner width ``ratio * hidden_size``; gelu exact or by tanh."""

    def __init__(self, hidden_size: int, ratio: int, gelu: Literal["none", "tanh"] = "none") -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, ratio * hidden_size)
        self.activation = nn.GELU(approximate=gelu)
        self.fc2 = nn.Linear(ratio * hidden_size, hidden_size)


class Block(nn.Module):
    """``x + mixer(norm(x))``, then ``x + MLP(norm(x))``, with dropout on both summands.

    Args:
        mixer: Sequence layer.
        mlp_ratio: Inner width of the MLP relative to ``hidden_size``.
        dropout: Dropout probability.
        gelu: Approximation of the MLP's activation; see :class:`torch.nn.GELU`.
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
        """Map ``[B, T, hidden_size]`` to the same shape.

        Args:
            x: Input.
            attention_mask: See :meth:`swila.layers.SequenceMixer.forward`.
            past_key_values: See :meth:`swila.layers.SequenceMixer.forward`; updated if given.
            cu_seqlens: See :meth:`swila.layers.SequenceMixer.forward`.
            where: Positions whose output to return, as ``[positions, hidden_size]``: a bool mask ``[B, T]``, or indices
                of P positions per row ``[B, P]``. The MLP is computed only there. Default: all positions.
        """
        y, _, _ = self.mixer(self.mixer_norm(x), attention_mask, past_key_values, cu_seqlens=cu_seqlens)
        x = x + self.dropout(y)
        if where is not None:
            by_number = where.dtype != torch.bool
            x = x.gather(1, where.unsqueeze(-1).expand(-1, -1, x.shape[-1])).flatten(0, 1) if by_number else x[where]
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
