"""A block of the language model: a mixer and a feed-forward layer, each with a norm before and a residual around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GradientCheckpointingLayer

from swila.layers import make_mixer
from swila.layers.cache import LayerState
from swila.layers.decoding import fused_step, fuses
from swila.layers.projection import SwiGLU
from swila.models.language.configuration import SwiLAConfig
from swila.models.language.feed_forward import add_feed_forward, normalize


class SwiLABlock(GradientCheckpointingLayer):
    """``x + mixer(norm(x))``, then ``x + SwiGLU(norm(x))``."""

    def __init__(self, config: SwiLAConfig, layer_idx: int) -> None:
        super().__init__()
        name = config.layer_mixers[layer_idx]
        self.mixer_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mixer = make_mixer(name, config.hidden_size, layer_idx=layer_idx, **config.options_of(name))
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size, config.hidden_size)
        for projection in (getattr(self.mixer, "o_proj", None), self.mlp.down):
            if projection is not None:
                projection.writes_residual = True

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Map ``[B, T, hidden_size]`` to the same shape; a given cache is updated."""
        normed = normalize(self.mixer_norm, hidden_states)
        mixed, _, _ = self.mixer(normed, attention_mask, past_key_values, cu_seqlens=cu_seqlens)
        return add_feed_forward(self.mlp_norm, self.mlp, hidden_states, mixed)

    def step(self, hidden_states: Tensor, state: LayerState, alive: Tensor) -> Tensor:
        """Run one decode step, updating the state in place; see :meth:`swila.layers.SequenceMixer.step`.

        On a GPU it is a few fused kernels (:mod:`swila.layers.decoding`) where they serve the block.
        """
        if self.fuses_step(hidden_states):
            x = hidden_states.squeeze(1)
            x = fused_step(self.mixer, self.mixer_norm, self.mlp_norm, self.mlp, x, state, alive)
            return x.unsqueeze(1)
        mixed = self.mixer.step(normalize(self.mixer_norm, hidden_states), state, alive)
        return add_feed_forward(self.mlp_norm, self.mlp, hidden_states, mixed)

    def fuses_step(self, hidden_states: Tensor) -> bool:
        """Return whether a decode step of ``hidden_states [B, 1, hidden_size]`` runs in fused kernels."""
        if torch.compiler.is_compiling():
            return False
        return fuses(self.mixer, (self.mixer_norm, self.mlp_norm), self.mlp, hidden_states)
