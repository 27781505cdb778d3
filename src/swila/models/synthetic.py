"""The small model of the synthetic experiments: an embedding, a few blocks, and the embedding again to read out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from swila.layers import SequenceMixer, make_mixer
from swila.models.block import Block


@dataclass(frozen=True)
class SyntheticModelConfig:
    """What a :class:`SyntheticModel` is made of.

    Attributes:
        vocab_size: tokens.
        hidden_size: width of the residual stream.
        num_layers: blocks.
        mixer: name of the sequence layer; see :data:`swila.layers.MIXERS`.
        mixer_options: its options.
        mlp_ratio: inner over outer width of the MLPs.
        embed_dropout: dropout of the embedded tokens.
        dropout: dropout of what each sublayer adds.
        init_std: standard deviation of the initial weights.
        gelu: approximation of the MLPs' activation: ``"none"`` or ``"tanh"``.
        rescaled: the projections that start smaller by ``1/sqrt(2 layers)``, by the ends of their names; Zoology's
            rescaling meets the MLPs' last, GPT-2's the mixers' too.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    mixer: str
    mixer_options: dict[str, Any] = field(default_factory=dict)
    mlp_ratio: int = 4
    embed_dropout: float = 0.0
    dropout: float = 0.0
    init_std: float = 0.02
    gelu: Literal["none", "tanh"] = "none"
    rescaled: tuple[str, ...] = ("fc2",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rescaled", tuple(self.rescaled))
        if self.num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
        if not 0 <= self.init_std < math.inf:
            raise ValueError(f"init_std must be a finite number of at least 0, got {self.init_std}")
        for name in ("embed_dropout", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")


class SyntheticModel(nn.Module):
    """Tokens to logits, with tied embeddings and no positions but those a mixer has (as in Zoology)."""

    def __init__(self, config: SyntheticModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_dropout = nn.Dropout(config.embed_dropout)
        mixers = [
            make_mixer(config.mixer, config.hidden_size, layer_idx=i, **config.mixer_options)
            for i in range(config.num_layers)
        ]
        self.blocks = nn.ModuleList(Block(mixer, config.mlp_ratio, config.dropout, config.gelu) for mixer in mixers)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights of Linear and Embedding from N(0, std²), some by ``1/sqrt(2 layers)`` less; biases 0.

        What a layer starts on purpose (convolutions, decay rates, the stickiness of temporal gates) stays.
        """
        std = self.config.init_std
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                scale = 1 / math.sqrt(2 * self.config.num_layers) if name.endswith(self.config.rescaled) else 1.0
                nn.init.normal_(module.weight, std=scale * std)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def hidden(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        cu_seqlens: Tensor | None = None,
        where: Tensor | None = None,
    ) -> Tensor:
        """The last hidden states ``[B, T, hidden_size]`` of ``tokens [B, T]``; a cache that is given is updated.

        With ``where`` only those of some places, ``[places, hidden_size]``; see :meth:`Block.forward`.
        """
        x = self.embed_dropout(self.embedding(tokens))
        for block in self.blocks[:-1]:
            x = block(x, attention_mask, past_key_values, cu_seqlens)
        return self.norm(self.blocks[-1](x, attention_mask, past_key_values, cu_seqlens, where))

    def forward(self, tokens: Tensor, where: Tensor | None = None, **options: Any) -> Tensor:
        """Logits ``[B, T, vocab_size]``, or only those of some places, ``[places, vocab_size]``.

        Most of the work after the last mixer is saved where labels are few. The places are those where ``where [B, T]``
        is true, or P of each row by their numbers ``where [B, P]``. The options are those of :meth:`hidden`.
        """
        return F.linear(self.hidden(tokens, where=where, **options), self.embedding.weight)

    def parts(self) -> list[nn.Module]:
        """What a compiler may take as wholes, one like the other."""
        return list(self.blocks)

    @property
    def mixers(self) -> list[SequenceMixer]:
        """The sequence layers, in order."""
        return [block.mixer for block in self.blocks if isinstance(block, Block)]

    def state_size(self, length: int = 1) -> int:
        """Scalars of recurrent state after ``length`` tokens, over all layers."""
        return sum(mixer.state_size(length) for mixer in self.mixers)

    def num_parameters(self) -> int:
        """Trained scalars."""
        return sum(p.numel() for p in self.parameters())
