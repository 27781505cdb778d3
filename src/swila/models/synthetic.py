"""The small model of the synthetic experiments: an embedding, a few blocks, and a head tied to the embedding."""

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
    """Configuration of a :class:`SyntheticModel`.

    Attributes:
        vocab_size: Number of tokens in the vocabulary.
        hidden_size: Width of the residual stream.
        num_layers: Number of blocks.
        mixer: Name of the sequence layer; see :data:`swila.layers.MIXERS`.
        mixer_options: Options of the sequence layer.
        mlp_ratio: Inner width of the MLPs relative to ``hidden_size``.
        embed_dropout: Dropout probability of the embedded tokens.
        dropout: Dropout probability of the output of each sublayer.
        init_std: Standard deviation of the initial weights.
        gelu: Approximation of the MLPs' activation: ``"none"`` or ``"tanh"``.
        rescaled: Suffixes of the names of projections whose initial weights are scaled by ``1/sqrt(2 num_layers)``.
            Zoology rescales the last projection of the MLPs, GPT-2 also that of the mixers.
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
    """Tokens to logits, with tied embeddings and no position embeddings (as in Zoology)."""

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
        """Draw the weights of Linear and Embedding from N(0, std²), ``rescaled`` ones scaled down; set biases to 0.

        Other parameters (convolutions, decay rates, biases of temporal gates) keep the initial values of their layer.
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
        """Return the last hidden states ``[B, T, hidden_size]`` of ``tokens [B, T]``.

        Args:
            tokens: Token ids.
            attention_mask: See :meth:`swila.layers.SequenceMixer.forward`.
            past_key_values: See :meth:`swila.layers.SequenceMixer.forward`; updated if given.
            cu_seqlens: See :meth:`swila.layers.SequenceMixer.forward`.
            where: Positions to return, as ``[positions, hidden_size]``; see :meth:`Block.forward`. Default: all.
        """
        x = self.embed_dropout(self.embedding(tokens))
        for block in self.blocks[:-1]:
            x = block(x, attention_mask, past_key_values, cu_seqlens)
        return self.norm(self.blocks[-1](x, attention_mask, past_key_values, cu_seqlens, where))

    def forward(self, tokens: Tensor, where: Tensor | None = None, **options: Any) -> Tensor:
        """Return the logits ``[B, T, vocab_size]``, or ``[positions, vocab_size]`` of selected positions.

        Args:
            tokens: Token ids ``[B, T]``.
            where: Positions to return: a bool mask ``[B, T]``, or indices of P positions per row ``[B, P]``. With few
                labels this saves most of the work after the last mixer. Default: all.
            **options: Further arguments of :meth:`hidden`.
        """
        return F.linear(self.hidden(tokens, where=where, **options), self.embedding.weight)

    def parts(self) -> list[nn.Module]:
        """Return the modules to compile separately; one compiled graph serves all."""
        return list(self.blocks)

    @property
    def mixers(self) -> list[SequenceMixer]:
        """The sequence layers in order."""
        return [block.mixer for block in self.blocks if isinstance(block, Block)]

    def state_size(self, length: int = 1) -> int:
        """Return the number of scalars in the states of all layers after ``length`` tokens."""
        return sum(mixer.state_size(length) for mixer in self.mixers)

    def num_parameters(self) -> int:
        """Return the number of trainable scalars."""
        return sum(p.numel() for p in self.parameters())
