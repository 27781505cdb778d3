"""The language model: one file for every architecture, because only the mixer of each layer differs."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, GradientCheckpointingLayer, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from swila.layers import Cache, collect_auxiliary_loss, make_mixer
from swila.layers.cache import LayerState
from swila.layers.packing import Packed, pack, pack_by_position, split_by_position
from swila.layers.projection import SwiGLU
from swila.models.language.configuration import SwiLAConfig
from swila.models.language.cross_entropy import IGNORE, chunked_cross_entropy, linear_cross_entropy
from swila.models.language.model_card import write_model_card
from swila.ops.validation import INTEGER


class SwiLABlock(GradientCheckpointingLayer):
    """``x + mixer(norm(x))``, then ``x + SwiGLU(norm(x))``."""

    def __init__(self, config: SwiLAConfig, layer_idx: int) -> None:
        super().__init__()
        name = config.layer_mixers[layer_idx]
        self.mixer_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mixer = make_mixer(name, config.hidden_size, layer_idx=layer_idx, **config.options_of(name))
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size, config.hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """``[B, T, hidden_size]`` to the same; a cache that is given is updated."""
        normed = self.mixer_norm(hidden_states)
        mixed, _, _ = self.mixer(normed, attention_mask, past_key_values, cu_seqlens=cu_seqlens)
        return self._feed_forward(hidden_states + mixed)

    def step(self, hidden_states: Tensor, state: LayerState, alive: Tensor) -> Tensor:
        """One token over the old state; see :meth:`swila.layers.SequenceMixer.step`."""
        return self._feed_forward(hidden_states + self.mixer.step(self.mixer_norm(hidden_states), state, alive))

    def _feed_forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states + self.mlp(self.mlp_norm(hidden_states))


class SwiLAPreTrainedModel(PreTrainedModel):
    """What the models share: how weights start, are saved and loaded."""

    config_class = SwiLAConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SwiLABlock"]  # noqa: RUF012
    _keep_in_fp32_modules_strict = ["A_log", "dt_bias"]  # noqa: RUF012 (decays of a thousandth need the digits)
    _supports_sdpa = True
    _is_stateful = True  # a recurrent state cannot be rolled back

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Linear and Embedding from N(0, std²), biases 0; what a layer starts on purpose it starts itself."""
        own = list(module.parameters(recurse=False))
        if own and all(getattr(p, "_is_hf_initialized", False) for p in own):
            return  # transformers' mark of what came from a checkpoint
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """See transformers; not in the reentrant way, which would lose the gradients of load balancing."""
        if (gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            raise ValueError("use_reentrant must be False in gradient_checkpointing_kwargs: it loses auxiliary losses")
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs, *args, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """See transformers; a model card is written as well, unless the directory has a README.md."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", args[0] if args else True):
            write_model_card(self, save_directory)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """See transformers; a checkpoint that lacks weights of this architecture is an error, not a random start."""
        fix = f"load it with the config it was saved with, or start anew with {cls.__name__}(config)"
        try:
            model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            raise ValueError(
                f"the checkpoint is not one of this architecture: weights differ in shape (listed above); {fix}"
            ) from None
        missing = sorted(info["missing_keys"])
        if missing and all(name.startswith("lm_head") for name in missing):
            raise ValueError("the checkpoint has no head: it was saved by SwiLAModel; load it with SwiLAModel")
        if missing and not kwargs.get("ignore_mismatched_sizes", False):
            raise ValueError(
                f"the checkpoint is not one of this architecture: {len(missing)} weights are not there, such as "
                f"{missing[0]!r}, and {len(info['unexpected_keys'])} that are there are not wanted; {fix}"
            )
        return (model, info) if output_loading_info else model


class SwiLAModel(SwiLAPreTrainedModel):
    """Tokens to hidden states: an embedding, the blocks, a norm."""

    def __init__(self, config: SwiLAConfig) -> None:
        super().__init__(config)
        config.check()  # again: fields may have been set since
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
        """Hidden states ``[B, T, hidden_size]``.

        Args:
            input_ids: tokens ``[B, T]``.
            attention_mask: 1 for a token and 0 for padding, on either side, ``[B, T]``; with a cache also that of the
                whole text so far, ``[B, tokens before + T]``.
            position_ids: places in the text ``[B, T]``; where they start again from 0 a new sequence begins, which sees
                nothing of those before it. They matter for nothing else, not at padding, and not with a cache that
                holds the text before.
            past_key_values: the :class:`swila.layers.Cache` of the tokens before these; it is updated.
            inputs_embeds: embedded tokens ``[B, T, hidden_size]``, instead of ``input_ids``.
            use_cache: whether to return a cache; by default as in the config, and not in training.
            output_hidden_states: whether to return what each block gets and the result.
            return_dict: False for a tuple.
            cu_seqlens: bounds of packed sequences, int ``[N + 1]``; then B must be 1. ``cu_seq_lens_q``, as
                transformers' collator calls them, is the same.
            kwargs: what other models have and this one does not need (``cache_position`` and the like).
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids or inputs_embeds must be given, one of the two")
        if input_ids is not None and (input_ids.ndim != 2 or input_ids.dtype not in INTEGER):
            got = f"{input_ids.dtype} of shape {list(input_ids.shape)}"
            raise ValueError(f"input_ids must be int32 or int64 and [B, T], got {got}")
        _check_keywords(kwargs)
        if kwargs.get("output_attentions"):
            raise ValueError("output_attentions must be False: recurrent layers form no attention matrix")
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
                f"past_key_values must be a swila.layers.Cache, got {type(past_key_values).__name__}; leave it out "
                "to begin with an empty one"
            )
        elif past_key_values is not None and self.training and self.gradient_checkpointing:
            raise ValueError(
                "past_key_values must be None in training with gradient checkpointing: blocks run a second time, when "
                "the cache has moved on; call gradient_checkpointing_disable(), or pass the whole text"
            )
        T, seen = x.shape[1], 0 if past_key_values is None else past_key_values.seen_by(len(self.layers))
        packed = self._pack(x, attention_mask, None if seen else position_ids, _bounds(cu_seqlens, kwargs), seen)
        # rows without a token are the mixers' affair: they keep their state
        as_it_is = packed.rows is not None
        x, bounds, mask = (x, None, attention_mask) if as_it_is else (packed.x, packed.cu_seqlens, None)
        kept = []
        for layer in self.layers:
            if output_hidden_states:
                kept.append(x if as_it_is else packed.restore(x))
            x = layer(x, attention_mask=mask, past_key_values=past_key_values, cu_seqlens=bounds)
        x = self.norm(x)
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
        """One token of every row, over the old state: ``tokens [B]`` to hidden states ``[B, hidden_size]``.

        Args:
            tokens: the rows' next tokens.
            states: of :meth:`decoding_states`, written to.
            alive: which rows take the step, bool ``[B]``; the others keep their state bit for bit.
            compiled: whether blocks go through ``torch.compile``: seconds at first, then half the time.
        """
        step = _compiled_step if compiled else SwiLABlock.step
        x = self.embed_tokens(tokens).where(alive.unsqueeze(1), 0).unsqueeze(1)  # rows at rest must not bring in NaN
        for layer, state in zip(self.layers, states, strict=True):
            x = step(layer, x, state, alive)
        return self.norm(x).squeeze(1)

    def decoding_states(self, cache: Cache, capacity: int) -> list[LayerState]:
        """What :meth:`step` writes to, from a cache; with room for ``capacity`` tokens where layers keep them all."""
        return [layer.mixer.decoding_state(cache[i], capacity) for i, layer in enumerate(self.layers)]

    @property
    def attends(self) -> bool:
        """Whether some layer keeps something of every token."""
        return self.state_size(1) > self.state_size(0)

    def state_size(self, length: int = 1) -> int:
        """Scalars of memory carried after ``length`` tokens, over all layers."""
        return sum(layer.mixer.state_size(length) for layer in self.layers)


class SwiLAForCausalLM(SwiLAPreTrainedModel, GenerationMixin):
    """A language model with any of the mixers, in transformers' manner.

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
        """Logits ``[B, T, vocab_size]``, and with labels the loss.

        In training with labels there are no logits (unless the config has ``fuse_cross_entropy=False``): the loss is
        computed a few thousand tokens at a time. It includes the mixers' load-balancing losses; who computes a loss of
        their own from the logits must add :func:`swila.layers.collect_auxiliary_loss`.

        Args:
            input_ids: tokens ``[B, T]``; this and what follows as for :class:`SwiLAModel`.
            attention_mask: 1 for a token and 0 for padding, ``[B, T]`` or that of the whole text so far.
            position_ids: places in the text ``[B, T]``; a sequence begins where they are 0.
            past_key_values: the cache of the tokens before these; it is updated.
            inputs_embeds: embedded tokens ``[B, T, hidden_size]``, instead of ``input_ids``.
            use_cache: whether to return a cache.
            output_hidden_states: whether to return what each block gets and the result.
            return_dict: False for a tuple.
            cu_seqlens: bounds of packed sequences, int ``[N + 1]``; then B must be 1.
            labels: the tokens again ``[B, T]``, -100 where nothing is to be learnt; each is predicted from those before
                it, in its own sequence.
            logits_to_keep: how many of the last places have logits (0: all), or which (a tensor of indices).
            num_items_in_batch: labels over all steps that gradients are accumulated over, from transformers' Trainer.
            kwargs: handed on; ``shift_labels`` may be there instead of ``labels``, each at the place that predicts it.
        """
        shift_labels = kwargs.pop("shift_labels", None)  # by name it would be a label that Trainer waits for
        if isinstance(logits_to_keep, int) and logits_to_keep < 0:
            raise ValueError(
                f"logits_to_keep must be 0 (all), a number of last places or a tensor, got {logits_to_keep}"
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
        loss, logits = None, None
        if labels is not None and shift_labels is None:
            shift_labels = _next_tokens(labels, attention_mask, position_ids, _bounds(cu_seqlens, kwargs))
        every_place = isinstance(logits_to_keep, int) and logits_to_keep == 0
        if shift_labels is None or not self.training or not self.config.fuse_cross_entropy:
            last = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(hidden if every_place else hidden[:, last])
        if shift_labels is not None:
            loss = self._loss(hidden, shift_labels, num_items_in_batch, logits if every_place else None)
        if return_dict is False or (return_dict is None and not self.config.return_dict):
            parts = (loss, logits, outputs.past_key_values, outputs.hidden_states)
            return tuple(part for part in parts if part is not None)
        return CausalLMOutputWithPast(loss, logits, outputs.past_key_values, outputs.hidden_states)

    def _loss(self, hidden: Tensor, targets: Tensor, num_items: Tensor | int | None, logits: Tensor | None) -> Tensor:
        targets, hidden = targets.flatten().to(hidden.device), hidden.flatten(0, 1)
        chunk, head = self.config.loss_chunk_size, self.lm_head
        if logits is not None:
            total = chunked_cross_entropy(nn.Identity(), logits.flatten(0, 1), targets, chunk, logits.shape[-1])
        elif type(head) is nn.Linear and head.bias is None and not (head._forward_hooks or head._forward_pre_hooks):
            total = linear_cross_entropy(hidden, head.weight, targets, chunk)
        else:  # a head that somebody has wrapped, sharded or replaced must be called
            total = chunked_cross_entropy(head, hidden, targets, chunk, self.config.vocab_size)
        mine = (targets != IGNORE).sum().clamp_min(1)
        divisor = mine if num_items is None else torch.as_tensor(num_items, device=hidden.device)
        loss = total / divisor
        if self.training:
            loss = loss + collect_auxiliary_loss(self.model) * (mine / divisor)  # its share, where steps accumulate
        return loss

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """What a call of ``generate`` passes on: the tokens the cache has not seen yet."""
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        inputs: dict[str, Any] = {"past_key_values": past_key_values, "attention_mask": attention_mask}
        if kwargs.get("cu_seqlens") is not None:
            raise ValueError("cu_seqlens must be None in generate: pass the sequences as rows of a batch, left-padded")
        if inputs_embeds is not None and seen < inputs_embeds.shape[1]:
            inputs["inputs_embeds"] = inputs_embeds[:, seen:]
        else:
            # after embeddings, input_ids may begin with the prompt or not; but then tokens come one by one
            new = input_ids.shape[1] - seen if inputs_embeds is None else 1
            if new < 1:
                raise ValueError(
                    f"input_ids must go on after the {seen} tokens the cache has seen, got {input_ids.shape[1]}: "
                    "pass the whole text, or no past_key_values"
                )
            inputs["input_ids"] = input_ids[:, -new:].contiguous()
        for name in ("use_cache", "logits_to_keep", "output_hidden_states", "return_dict"):
            if name in kwargs:
                inputs[name] = kwargs[name]
        return inputs

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the first call makes a cache of our own


def _compiled_step(*args: Any) -> Tensor:
    """A block's step, compiled once for all blocks of a kind; kinds and batch sizes of a process may be many."""
    with torch._dynamo.config.patch(recompile_limit=256):
        return _compiled_block_step()(*args)


@functools.cache
def _compiled_block_step() -> Callable[..., Tensor]:
    return torch.compile(SwiLABlock.step, fullgraph=True)


def _check_keywords(others: dict[str, Any]) -> None:
    """Raise TypeError for what looks like a slip; transformers' tools pass keywords that other models need."""
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
    """Each label at the place that predicts it, -100 where the next token belongs to another sequence, or to none."""
    if attention_mask is not None:
        padding = attention_mask[:, -labels.shape[1] :] == 0
        labels = labels.masked_fill(padding | F.pad(padding[:, :-1], (1, 0)), IGNORE)  # nothing is before a first token
    if cu_seqlens is not None:
        labels = labels.index_fill(1, cu_seqlens[:-1].long(), IGNORE)
    elif position_ids is not None:
        labels = labels.masked_fill(position_ids == 0, IGNORE)
    return F.pad(labels[:, 1:], (0, 1), value=IGNORE)
