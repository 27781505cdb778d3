"""Configuration of the language models."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch
from transformers.configuration_utils import PreTrainedConfig

from swila.layers import MIXERS, make_mixer
from swila.models import auto
from swila.models.language.presets import get_preset

ELSEWHERE = {  # names of fields in other models' configurations
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), "num_heads in mixer_options"),
    "num_key_value_heads": "num_kv_heads in mixer_options of attention",
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), "norm_eps"),
    **dict.fromkeys(("num_layers", "n_layer", "n_layers"), "num_hidden_layers"),
    **dict.fromkeys(("d_model", "n_embd", "dim"), "hidden_size"),
    **dict.fromkeys(("n_inner", "ffn_dim", "d_ff"), "intermediate_size"),
    **dict.fromkeys(("n_positions", "max_seq_len"), "max_position_embeddings"),
}


class SwiLAConfig(PreTrainedConfig):
    """The configuration of :class:`SwiLAModel` and :class:`SwiLAForCausalLM`.

    Every block has a sequence mixer and a SwiGLU feed-forward layer. The mixer can be the same for all layers, or
    differ between layers (hybrid models).

    >>> SwiLAConfig(mixer="swila", mixer_options={"num_heads": 8, "temporal": True})
    >>> SwiLAConfig(mixer="swila", attention_layers=[3, 7, 11])  # SwiLA in the other layers
    >>> SwiLAConfig(mixer=["swila", "gated-deltanet", "attention"], num_hidden_layers=12)  # pattern, repeated
    >>> SwiLAConfig.preset("temporal-swila-374m", vocab_size=50304)

    Args:
        vocab_size: Number of tokens in the vocabulary.
        hidden_size: Width of the residual stream.
        num_hidden_layers: Number of blocks.
        intermediate_size: Inner width of the feed-forward layers. Default: 8/3 of ``hidden_size``, rounded up to a
            multiple of 256.
        mixer: Name of the sequence mixer (see :data:`swila.layers.MIXERS`), or a list of names: one for each layer, or
            a pattern that is repeated.
        mixer_options: Options of the mixer; with several mixers, ``{name: options}``. See ``help`` of the mixer's
            class.
        attention_layers: Indices of layers, from 0, that are softmax attention regardless of ``mixer``.
        hidden_act: Activation of the feed-forward layers; must be ``"silu"``.
        norm_eps: Epsilon of the RMSNorms before mixers and feed-forward layers.
        initializer_range: Standard deviation of the initial weights.
        embedding_initializer_range: Standard deviation of the initial embeddings. Default: ``initializer_range``.
        conv_initializer_range: Standard deviation of the initial short convolutions. None draws them uniformly, as
            torch initialises a convolution; models then start slower.
        rescale_residual: Whether the initial output projections of mixers and feed-forward layers are divided by the
            square root of their number, ``2 num_hidden_layers``, so that the residual stream does not grow with depth.
        tie_word_embeddings: Whether the head shares the weight of the embedding.
        max_position_embeddings: Length of the training texts, for tools that read it. The model does not use it.
        use_cache: Whether calls outside of training return a cache.
        fuse_cross_entropy: Whether to compute the training loss in chunks of tokens, without returning logits. Set to
            False for a training loop that needs the logits.
        loss_chunk_size: Number of tokens per chunk of the loss. Default: as many as have 256 MB of logits.
        pad_token_id: Padding token of the tokenizer.
        bos_token_id: Start token of the tokenizer.
        eos_token_id: End token of the tokenizer.
    """

    model_type = "swila"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (transformers' attribute)

    def __init__(
        self,
        vocab_size: int = 32000,
        hidden_size: int = 1024,
        num_hidden_layers: int = 24,
        intermediate_size: int | None = None,
        mixer: str | list[str] = "swila",
        mixer_options: dict[str, Any] | None = None,
        attention_layers: list[int] | None = None,
        hidden_act: str = "silu",
        norm_eps: float = 1e-6,
        initializer_range: float = 0.02,
        embedding_initializer_range: float | None = None,
        conv_initializer_range: float | None = 0.02,
        rescale_residual: bool = False,
        tie_word_embeddings: bool = False,
        max_position_embeddings: int = 4096,
        use_cache: bool = True,
        fuse_cross_entropy: bool = True,
        loss_chunk_size: int | None = None,
        pad_token_id: int | None = None,
        bos_token_id: int | None = 1,
        eos_token_id: int | list[int] | None = 2,
        **kwargs: Any,
    ) -> None:
        _check_names(kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        if intermediate_size is None:
            intermediate_size = -(-8 * hidden_size // 3 // 256) * 256
        self.intermediate_size = intermediate_size
        self.mixer = mixer
        self.mixer_options = mixer_options or {}
        self.attention_layers = attention_layers
        self.hidden_act = hidden_act
        self.norm_eps = norm_eps
        self.initializer_range = initializer_range
        self.embedding_initializer_range = embedding_initializer_range
        self.conv_initializer_range = conv_initializer_range
        self.rescale_residual = rescale_residual
        self.max_position_embeddings = max_position_embeddings
        self.use_cache = use_cache
        self.fuse_cross_entropy = fuse_cross_entropy
        self.loss_chunk_size = loss_chunk_size
        super().__init__(
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            tie_word_embeddings=tie_word_embeddings,
            **kwargs,
        )
        self.check()
        auto.register_models()

    @classmethod
    def preset(cls, name: str, **changes: Any) -> SwiLAConfig:
        """Return the configuration of a model of the paper.

        Args:
            name: Name of the preset, for example ``"temporal-swila-374m"``; ``swila models`` lists all.
            **changes: Fields to change. ``mixer_options`` are added to those of the preset.
        """
        fields = get_preset(name, changes.get("num_hidden_layers"))
        if "mixer" in changes:
            fields.pop("mixer_options")
        elif "mixer_options" in changes:
            options, added = fields["mixer_options"], changes.pop("mixer_options")
            flat = {key: value for key, value in added.items() if key not in options}
            named = {**added, fields["mixer"]: {**added.get(fields["mixer"], {}), **flat}}
            fields["mixer_options"] = {mixer: {**options[mixer], **named.get(mixer, {})} for mixer in options}
        return cls(**{**fields, **changes})

    @property
    def layer_mixers(self) -> list[str]:
        """Name of the mixer of each layer."""
        names = [self.mixer] if isinstance(self.mixer, str) else list(self.mixer)
        repeated = [names[i % len(names)] for i in range(self.num_hidden_layers)]
        for i in self.attention_layers or ():
            repeated[i] = "attention"
        return repeated

    def options_of(self, mixer: str) -> dict[str, Any]:
        """Return the options of a mixer, from either form of ``mixer_options``."""
        if mixer in self.mixer_options:
            return dict(self.mixer_options[mixer])
        by_name = any(name in MIXERS for name in self.mixer_options)
        return {} if by_name or mixer != self.mixer else dict(self.mixer_options)

    def check(self) -> None:
        """Raise ValueError if a field is invalid; the message names the field and the values allowed."""
        for field in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} must be an integer of at least 1, got {value!r}")
        if self.loss_chunk_size is not None and not self.loss_chunk_size >= 1:
            raise ValueError(f"loss_chunk_size must be at least 1, or None, got {self.loss_chunk_size}")
        if not self.norm_eps > 0:
            raise ValueError(f"norm_eps must be above 0, got {self.norm_eps}")
        for name in ("initializer_range", "embedding_initializer_range", "conv_initializer_range"):
            value = getattr(self, name)
            if not (value is None and name != "initializer_range") and not value >= 0:
                raise ValueError(f"{name} must be 0 or more, got {value}")
        if self.hidden_act != "silu":
            raise ValueError(f"hidden_act must be 'silu' (the feed-forward layers are SwiGLU), got {self.hidden_act!r}")
        self._check_mixers()
        for name in dict.fromkeys(self.layer_mixers):
            options = self.options_of(name)
            if "layer_idx" in options:
                raise ValueError(f"mixer_options of {name!r}: layer_idx is set by the model; remove it")
            try:
                with torch.device("meta"):
                    make_mixer(name, self.hidden_size, **options)
            except ValueError as error:
                raise ValueError(f"mixer_options of {name!r}: {error}") from None

    def _check_mixers(self) -> None:
        names = [self.mixer] if isinstance(self.mixer, str) else self.mixer
        L, known = self.num_hidden_layers, ", ".join(MIXERS)
        if not isinstance(names, list | tuple) or not names:
            raise ValueError(f"mixer must be a name or a list of names, of {known}; got {self.mixer!r}")
        for i, name in enumerate(names):
            if name not in MIXERS:
                where = "mixer" if isinstance(self.mixer, str) else f"mixer[{i}]"
                raise ValueError(
                    f"{where} must be one of {known}, got {name!r}; register_mixer adds a mixer of your own"
                )
        if L % len(names):
            raise ValueError(
                f"mixer must name each of num_hidden_layers = {L} layers, or be a pattern whose length divides {L}, "
                f"got {len(names)} names"
            )
        layers = self.attention_layers
        if layers is not None:
            if not isinstance(layers, list | tuple):
                raise ValueError(f"attention_layers must be a list of layer indices, got {layers!r}")
            wrong = [i for i in layers if not isinstance(i, int) or not 0 <= i < L]
            if wrong:
                raise ValueError(
                    f"attention_layers must be between 0 and {L - 1} for num_hidden_layers = {L} (indices start at 0: "
                    f"the paper's layer 4 is 3), got {wrong}"
                )
            if len(set(layers)) < len(layers):
                raise ValueError(f"attention_layers must name each layer once, got {layers}")
        if not isinstance(self.mixer_options, dict):
            raise ValueError(f"mixer_options must be a dict of options, got {self.mixer_options!r}")
        by_name = [name for name in self.mixer_options if name in MIXERS]
        if by_name:
            for name, options in self.mixer_options.items():
                if name not in self.layer_mixers:
                    raise ValueError(
                        f"mixer_options has options of {name!r}, which no layer uses; the layers are "
                        f"{', '.join(dict.fromkeys(self.layer_mixers))}"
                    )
                if not isinstance(options, dict):
                    raise ValueError(f"mixer_options[{name!r}] must be a dict of options, got {options!r}")
        elif self.mixer_options and not isinstance(self.mixer, str):
            raise ValueError(
                f"mixer_options must be {{name: options}} where mixer is a list, got {sorted(self.mixer_options)}"
            )

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """See transformers; the configuration of another architecture raises ValueError."""
        found = config_dict.get("model_type", cls.model_type)
        if found != cls.model_type:
            raise ValueError(
                f"model_type must be {cls.model_type!r} in a configuration of SwiLA, got {found!r}: load this "
                f"checkpoint with transformers' AutoModelForCausalLM"
            )
        return super().from_dict(config_dict, **kwargs)


def _check_names(others: dict[str, Any]) -> None:
    """Raise ValueError for an unknown field that looks like a mistake; transformers accepts any name."""
    ours = list(inspect.signature(SwiLAConfig.__init__).parameters)[1:-1]
    for name in others:
        if name in ELSEWHERE:
            raise ValueError(f"{name!r} is not a field of SwiLAConfig; use {ELSEWHERE[name]}")
        options = [mixer for mixer, kind in MIXERS.items() if name in inspect.signature(kind).parameters]
        if options:
            raise ValueError(
                f"{name!r} is an option of the mixer {' or '.join(map(repr, options))}: put it into mixer_options"
            )
        if close := difflib.get_close_matches(name, ours, 1, 0.85):
            raise ValueError(f"{name!r} is not a field of SwiLAConfig; did you mean {close[0]!r}?")
