"""The language model. One implementation serves all architectures: they differ only in the mixers."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from swila.layers import Cache, collect_auxiliary_loss
from swila.layers.cache import LayerState
from swila.layers.packing import Packed, pack, pack_by_position, split_by_position
from swila.layers.short_conv import ShortConvolution
from swila.models.language.block import SwiLABlock
from swila.models.language.configuration import SwiLAConfig
from swila.models.language.cross_entropy import IGNORE, chunked_cross_entropy, linear_cross_entropy
from swila.models.language.feed_forward import normalize
from swila.models.language.model_card import write_model_card
from swila.ops.validation import INTEGER


@dataclass
class SwiLACausalLMOutput(CausalLMOutputWithPast):
    """The output of :class:`SwiLAForCausalLM`.

    Attributes:
        auxiliary_loss: Part of ``loss`` that is load balancing, in training with labels; detached.
    """

    auxiliary_loss: Tensor | None = None


class SwiLAPreTrainedModel(PreTrainedModel):
    """Initialisation, saving and loading of weights."""

    config_class = SwiLAConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SwiLABlock"]  # noqa: RUF012
    _keep_in_fp32_modules_strict = ["A_log", "dt_bias"]  # noqa: RUF012 (decay rates of 0.001 need the precision)
    _supports_sdpa = True
    _is_stateful = True  # a recurrent state cannot be rolled back

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw Linear and Embedding from N(0, std²), set biases to 0; other modules use their ``reset_parameters``.

        See :class:`SwiLAConfig` for the standard deviations of embeddings, convolutions and output projections.
        """
        own = list(module.parameters(recurse=False))
        if own and all(getattr(p, "_is_hf_initialized", False) for p in own):
            return  # set by transformers for weights from a checkpoint
        config = self.config
        if isinstance(module, nn.Linear):
            rescaled = config.rescale_residual and getattr(module, "writes_residual", False)
            divisor = math.sqrt(2 * config.num_hidden_layers) if rescaled else 1.0
            nn.init.normal_(module.weight, std=config.initializer_range / divisor)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            std = config.embedding_initializer_range
            nn.init.normal_(module.weight, std=config.initializer_range if std is None else std)
        elif isinstance(module, ShortConvolution) and config.conv_initializer_range is not None:
            nn.init.normal_(module.weight, std=config.conv_initializer_range)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """See transformers; reentrant checkpointing is refused: it loses the gradients of load balancing."""
        if (gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            raise ValueError("use_reentrant must be False in gradient_checkpointing_kwargs: it loses auxiliary losses")
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs, *args, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """See transformers; also writes a model card, unless the directory has a README.md."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", args[0] if args else True):
            write_model_card(self, save_directory)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """See transformers; a checkpoint without all weights of this architecture raises ValueError."""
        fix = f"load it with the config it was saved with, or create a new model with {cls.__name__}(config)"
        try:
            model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            raise ValueError(
                f"the checkpoint is of another architecture: weights differ in shape (listed above); {fix}"
            ) from None
        missing = sorted(info["missing_keys"])
        if missing and all(name.startswith("lm_head") for name in missing):
            raise ValueError("the checkpoint has no head: it was saved by SwiLAModel; load it with SwiLAModel")
        if missing and not kwargs.get("ignore_mismatched_sizes", False):
            raise ValueError(
                f"the checkpoint is of another architecture: {len(missing)} weights are missing, such as "
                f"{missing[0]!r}, and {len(info['unexpected_keys'])} are unexpected; {fix}"
            )
        return (model, info) if output_loading_info else model


class SwiLAModel(SwiLAPreTrainedModel):
    """The model without a head: an embedding, the blocks and a norm."""

    def __init__(self, config: SwiLAConfig) -> None:
        super().__init__(config)
        config.check()  # again: fields may have changed
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers: Any = nn.ModuleList(SwiLABlock(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cu_seqlens: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the hidden states ``[B, T, hidden_size]``.

        Args:
            input_ids: Token ids ``[B, T]``.
            attention_mask: 1 for tokens and 0 for padding, ``[B, T]``. With a cache it may cover the whole text,
                ``[B, past tokens + T]``.
            position_ids: Positions ``[B, T]``. A new sequence, independent of the previous ones, starts where they
                restart from 0; they have no other effect. Ignored at padding, and with a cache of previous tokens.
            past_key_values: :class:`swila.layers.Cache` of the previous tokens; it is updated.
            inputs_embeds: Embedded tokens ``[B, T, hidden_size]``, instead of ``input_ids``.
            use_cache: Whether to return a cache. Default: as in the config; False in training.
            output_hidden_states: Whether to return the input of each block and the final hidden states.
            return_dict: Whether to return a ModelOutput instead of a tuple.
            cu_seqlens: Boundaries of packed sequences, int ``[N + 1]``; requires B = 1. Transformers' name
                ``cu_seq_lens_q`` is accepted as well.
            **kwargs: Arguments of other models, such as ``cache_position``; ignored.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids or inputs_embeds must be given, and not both")
        if input_ids is not None and (input_ids.ndim != 2 or input_ids.dtype not in INTEGER):
            got = f"{input_ids.dtype} of shape {list(input_ids.shape)}"
            raise ValueError(f"input_ids must be int32 or int64 and [B, T], got {got}")
        _check_keywords(kwargs)
        if kwargs.get("output_attentions"):
            raise ValueError("output_attentions must be False: recurrent layers compute no attention matrix")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if 0 in x.shape:
            name = "input_ids" if inputs_embeds is None else "inputs_embeds"
            raise ValueError(f"{name} must have at least one row and one token, got shape {list(x.shape[:2])}")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if return_dict is None:
            return_dict = self.config.return_dict
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and self.training and self.gradient_checkpointing:
            use_cache = False
        if past_key_values is None and use_cache:
            past_key_values = Cache()
        elif past_key_values is not None and not isinstance(past_key_values, Cache):
            raise ValueError(
                f"past_key_values must be a swila.layers.Cache, got {type(past_key_values).__name__}; omit it to "
                "start with an empty one"
            )
        elif past_key_values is not None and self.training and self.gradient_checkpointing:
            raise ValueError(
                "past_key_values must be None in training with gradient checkpointing: the recomputation would read "
                "the updated cache; call gradient_checkpointing_disable(), or pass the whole text"
            )
        T, seen = x.shape[1], 0 if past_key_values is None else past_key_values.seen_by(len(self.layers))
        packed = self._pack(x, attention_mask, None if seen else position_ids, _bounds(cu_seqlens, kwargs), seen)
        # with rows without a token the mixers do the packing, because they must keep the state of these rows
        as_it_is = packed.rows is not None
        x, bounds, mask = (x, None, attention_mask) if as_it_is else (packed.x, packed.cu_seqlens, None)
        kept = []
        for layer in self.layers:
            if output_hidden_states:
                kept.append(x if as_it_is else packed.restore(x))
            x = layer(x, attention_mask=mask, past_key_values=past_key_values, cu_seqlens=bounds)
        x = normalize(self.norm, x)
        x = x if as_it_is else packed.restore(x)
        if past_key_values is not None:
            past_key_values.set_seq_length(seen + T)
        hidden_states = (*kept, x) if output_hidden_states else None
        if return_dict is False:
            return tuple(part for part in (x, past_key_values, hidden_states) if part is not None)
        return BaseModelOutputWithPast(x, past_key_values, hidden_states)

    def _pack(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cu_seqlens: Tensor | None,
        seen: int,
    ) -> Packed:
        packed = pack(x, attention_mask, cu_seqlens, seen)
        if position_ids is None or cu_seqlens is not None:
            return packed
        if packed.kept is not None:
            return split_by_position(packed, position_ids)
        return pack_by_position(x, position_ids)

    def step(self, tokens: Tensor, states: list[LayerState], alive: Tensor, compiled: bool = False) -> Tensor:
        """Run one decode step and return the hidden states ``[B, hidden_size]``.

        Args:
            tokens: Next token of each row, ``[B]``.
            states: States from :meth:`decoding_states`; updated in place.
            alive: Rows to update, bool ``[B]``. The state of the other rows stays bit-identical.
            compiled: See :meth:`step_blocks`.
        """
        x = self.embed_tokens(tokens).where(alive.unsqueeze(1), 0)  # finished rows must not introduce NaN
        return normalize(self.norm, self.step_blocks(x, states, alive, compiled))

    def step_blocks(self, x: Tensor, states: list[LayerState], alive: Tensor, compiled: bool = False) -> Tensor:
        """Run one decode step of the blocks on embedded tokens ``[B, hidden_size]``; the result is not normalised.

        Args:
            x: Embedded tokens.
            states: See :meth:`step`.
            alive: See :meth:`step`.
            compiled: Whether to compile the blocks with ``torch.compile``, except those that run in fused kernels. This
                takes seconds at first, and then halves the time of a step.
        """
        x = x.unsqueeze(1)
        for layer, state in zip(self.layers, states, strict=True):
            step = _compiled_step if compiled and not layer.fuses_step(x) else SwiLABlock.step
            x = step(layer, x, state, alive)
        return x.squeeze(1)

    def decoding_states(self, cache: Cache, capacity: int) -> list[LayerState]:
        """Return states for :meth:`step` from a cache, with room for ``capacity`` tokens in attention layers."""
        return [layer.mixer.decoding_state(cache[i], capacity) for i, layer in enumerate(self.layers)]

    @property
    def attends(self) -> bool:
        """Whether some layer caches every token."""
        return self.state_size(1) > self.state_size(0)

    def state_size(self, length: int = 1) -> int:
        """Return the number of scalars in the states of all layers after ``length`` tokens."""
        return sum(layer.mixer.state_size(length) for layer in self.layers)


class SwiLAForCausalLM(SwiLAPreTrainedModel, GenerationMixin):
    """A causal language model for transformers, with any of the mixers.

    >>> model = SwiLAForCausalLM(SwiLAConfig.preset("temporal-swila-374m"))
    >>> model.generate(input_ids, max_new_tokens=50)
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True

    def __init__(self, config: SwiLAConfig) -> None:
        super().__init__(config)
        self.model = SwiLAModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the logits ``[B, T, vocab_size]``, and with labels the loss.

        In training with labels no logits are returned (unless the config has ``fuse_cross_entropy=False``): the loss is
        computed in chunks of tokens. It includes the load-balancing losses of the mixers. If you compute your own loss
        from the logits, add :func:`swila.layers.collect_auxiliary_loss`.

        Args:
            input_ids: Token ids ``[B, T]``.
            attention_mask: See :meth:`SwiLAModel.forward`.
            position_ids: See :meth:`SwiLAModel.forward`.
            past_key_values: See :meth:`SwiLAModel.forward`.
            inputs_embeds: Embedded tokens ``[B, T, hidden_size]``, instead of ``input_ids``.
            use_cache: See :meth:`SwiLAModel.forward`.
            output_hidden_states: See :meth:`SwiLAModel.forward`.
            return_dict: Whether to return a ModelOutput instead of a tuple.
            cu_seqlens: See :meth:`SwiLAModel.forward`.
            labels: Token ids ``[B, T]``, with -100 for tokens without a loss. The model shifts them: each token is
                predicted from the previous ones in its sequence.
            logits_to_keep: Number of last positions with logits (0: all), or a tensor of indices of positions.
            num_items_in_batch: Number of labels in all accumulated batches, from transformers' Trainer.
            **kwargs: Further arguments of :meth:`SwiLAModel.forward`, and ``shift_labels``: labels that are shifted
                already, instead of ``labels``.
        """
        shift_labels = kwargs.pop("shift_labels", None)  # as a named argument, Trainer would expect it in the data
        if isinstance(logits_to_keep, int) and logits_to_keep < 0:
            raise ValueError(
                f"logits_to_keep must be 0 (all), a number of last positions or a tensor, got {logits_to_keep}"
            )
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            past_key_values,
            inputs_embeds,
            use_cache,
            output_hidden_states,
            return_dict=True,
            cu_seqlens=cu_seqlens,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        for name, given in (("labels", labels), ("shift_labels", shift_labels)):
            if given is not None and (given.shape != hidden.shape[:2] or given.dtype not in INTEGER):
                raise ValueError(
                    f"{name} must be int32 or int64 and [B, T] = {list(hidden.shape[:2])}, "
                    f"got {given.dtype} of shape {list(given.shape)}"
                )
        loss, auxiliary, logits = None, None, None
        if labels is not None and shift_labels is None:
            shift_labels = _next_tokens(labels, attention_mask, position_ids, _bounds(cu_seqlens, kwargs))
        all_positions = isinstance(logits_to_keep, int) and logits_to_keep == 0
        if shift_labels is None or not self.training or not self.config.fuse_cross_entropy:
            last = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(hidden if all_positions else hidden[:, last])
        if shift_labels is not None:
            loss, auxiliary = self._loss(hidden, shift_labels, num_items_in_batch, logits if all_positions else None)
        if return_dict is False or (return_dict is None and not self.config.return_dict):
            parts = (loss, logits, outputs.past_key_values, outputs.hidden_states)
            return tuple(part for part in parts if part is not None)
        return SwiLACausalLMOutput(
            loss, logits, outputs.past_key_values, outputs.hidden_states, auxiliary_loss=auxiliary
        )

    def _loss(
        self, hidden: Tensor, targets: Tensor, num_items: Tensor | int | None, logits: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the loss, and in training the part of it that is load balancing."""
        targets, hidden = targets.flatten().to(hidden.device), hidden.flatten(0, 1)
        chunk, head = self.config.loss_chunk_size, self.lm_head
        if logits is not None:
            total = chunked_cross_entropy(nn.Identity(), logits.flatten(0, 1), targets, chunk, logits.shape[-1])
        elif type(head) is nn.Linear and head.bias is None and not (head._forward_hooks or head._forward_pre_hooks):
            total = linear_cross_entropy(hidden, head.weight, targets, chunk)
        else:  # a wrapped, sharded or replaced head must be called as a module
            total = chunked_cross_entropy(head, hidden, targets, chunk, self.config.vocab_size)
        mine = (targets != IGNORE).sum().clamp_min(1)
        divisor = mine if num_items is None else torch.as_tensor(num_items, device=hidden.device)
        loss = total / divisor
        if not self.training:
            return loss, None
        # the auxiliary loss has the share of this batch under gradient accumulation
        auxiliary = collect_auxiliary_loss(self.model) * (mine / divisor)
        return loss + auxiliary, auxiliary.detach()

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of a call by ``generate``: the tokens that the cache does not include yet."""
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        inputs: dict[str, Any] = {"past_key_values": past_key_values, "attention_mask": attention_mask}
        if kwargs.get("cu_seqlens") is not None:
            raise ValueError("cu_seqlens must be None in generate: pass the sequences as rows of a batch, left-padded")
        if inputs_embeds is not None and seen < inputs_embeds.shape[1]:
            inputs["inputs_embeds"] = inputs_embeds[:, seen:]
        else:
            # after embeddings, input_ids may include the prompt or not; new tokens then come one at a time
            new = input_ids.shape[1] - seen if inputs_embeds is None else 1
            if new < 1:
                raise ValueError(
                    f"input_ids must be longer than the {seen} tokens of past_key_values, got {input_ids.shape[1]}: "
                    "pass the whole text, or no past_key_values"
                )
            inputs["input_ids"] = input_ids[:, -new:].contiguous()
        for name in ("use_cache", "logits_to_keep", "output_hidden_states", "return_dict"):
            if name in kwargs:
                inputs[name] = kwargs[name]
        return inputs

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the first call creates a swila.layers.Cache


def _compiled_step(*args: Any) -> Tensor:
    """Run the compiled decode step of a block; the limit allows many kinds of blocks and batch sizes in a process."""
    with torch._dynamo.config.patch(recompile_limit=256):
        return _compiled_block_step()(*args)


@functools.cache
def _compiled_block_step() -> Callable[..., Tensor]:
    return torch.compile(SwiLABlock.step, fullgraph=True)


def _check_keywords(others: dict[str, Any]) -> None:
    """Raise TypeError for a misspelt argument. Others are accepted: transformers passes arguments of other models."""
    if not others or torch.compiler.is_compiling():
        return
    ours = list(inspect.signature(SwiLAForCausalLM.forward).parameters)[1:-1]
    for name in others:
        close = difflib.get_close_matches(name, ours, 1, 0.9)
        if close and name not in ours:
            raise TypeError(f"forward() has no argument {name!r}; did you mean {close[0]!r}?")


def _bounds(cu_seqlens: Tensor | None, kwargs: dict[str, Any]) -> Tensor | None:
    return kwargs.get("cu_seq_lens_q") if cu_seqlens is None else cu_seqlens


def _next_tokens(
    labels: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cu_seqlens: Tensor | None
) -> Tensor:
    """Shift labels to the positions that predict them; -100 where the next token is padding or of another sequence."""
    if attention_mask is not None:
        padding = attention_mask[:, -labels.shape[1] :] == 0
        labels = labels.masked_fill(
            padding | F.pad(padding[:, :-1], (1, 0)), IGNORE
        )  # nothing precedes the first token
    if cu_seqlens is not None:
        labels = labels.index_fill(1, cu_seqlens[:-1].long(), IGNORE)
    elif position_ids is not None:
        labels = labels.masked_fill(position_ids == 0, IGNORE)
    return F.pad(labels[:, 1:], (0, 1), value=IGNORE)
