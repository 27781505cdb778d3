"""The contract of every sequence layer, ours and its baselines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from swila.layers.cache import (
    SHARED,
    Cache,
    LayerState,
    Shape,
    batch_size,
    check_cache,
    check_form,
    layer_state,
    map_tensors,
    merge_rows,
    select_rows,
)
from swila.layers.checks import check_counts
from swila.layers.context import CallContext, per_row
from swila.layers.last_call import LastCall
from swila.layers.packing import check_packing, pack


class SequenceMixer(nn.Module):
    """A layer that mixes tokens along time: what all of them share, and the two methods each of them writes.

    :meth:`forward` is that of flash-linear-attention's layers. It deals with padding, packed sequences and the cache,
    once; a layer writes :meth:`mix`, for whole or packed sequences, and :meth:`state_size`.
    """

    def __init__(self, hidden_size: int, layer_idx: int | None = None) -> None:
        super().__init__()
        check_counts(hidden_size=hidden_size)
        if layer_idx is not None and (not isinstance(layer_idx, int) or layer_idx < 0):
            raise ValueError(f"layer_idx must be the layer's place in the model, 0 or more, got {layer_idx!r}")
        self.hidden_size = hidden_size
        self.layer_idx = layer_idx
        self.last_call = LastCall()

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        output_attentions: bool | None = False,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, None, Any]:
        """Mix the tokens.

        Args:
            hidden_states: ``[B, T, hidden_size]``.
            attention_mask: 1 for a token and 0 for padding, ``[B, T]``; with a cache also that of the whole text so
                far, ``[B, tokens before + T]``, of which the last T columns count.
            past_key_values: the :class:`~swila.layers.Cache` of the tokens before these; it is read and updated.
            use_cache: whether to make a cache if none is given.
            output_attentions: must be False; it is here because callers pass it.
            cu_seqlens: bounds of packed sequences, int ``[N + 1]``; then B must be 1, and a cache has N rows.

        Returns:
            The output ``[B, T, hidden_size]`` (zeros at padding), None, and the cache or None.
        """
        if not isinstance(hidden_states, Tensor):
            raise ValueError(f"hidden_states must be a torch.Tensor, got {type(hidden_states).__name__}")
        if hidden_states.ndim != 3 or hidden_states.shape[-1] != self.hidden_size:
            raise ValueError(
                f"hidden_states must be [B, T, hidden_size] with hidden_size {self.hidden_size}, "
                f"got shape {list(hidden_states.shape)}"
            )
        if 0 in hidden_states.shape:
            raise ValueError(
                f"hidden_states must have at least one row and one token, got shape {list(hidden_states.shape)}"
            )
        if output_attentions:
            raise ValueError("output_attentions must be False: this layer forms no attention matrix")
        if cu_seqlens is not None:
            check_packing(cu_seqlens, hidden_states)
        if self.training:
            self.last_call.loss = None
        if past_key_values is None and use_cache:
            past_key_values = Cache()
        index, past = 0, None
        if past_key_values is not None:  # not looked at otherwise: a compiler then takes all layers for the same
            index, past = self._past(past_key_values)
        seen = past_key_values.get_seq_length(index) if past is not None and attention_mask is not None else 0
        packed = pack(hidden_states, attention_mask, cu_seqlens, seen)
        num_sequences = hidden_states.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        if past is not None and batch_size(past) != num_sequences:
            raise ValueError(
                f"past_key_values must have a row for each of {num_sequences} sequences, got {batch_size(past)}"
            )
        if packed.rows is not None and past is None and past_key_values is not None:
            raise ValueError("attention_mask must leave every row at least one token when a cache begins")

        if packed.x.shape[1] == 0:
            return packed.restore(packed.x), None, past_key_values
        before = past if packed.rows is None or past is None else select_rows(past, packed.rows)
        y, after = self.mix(packed.x, before, CallContext(packed.cu_seqlens, return_state=past_key_values is not None))
        if past_key_values is not None:
            assert after is not None
            if packed.rows is not None:
                assert past is not None
                after = self.merge(past, after, packed.rows)
            past_key_values.update(**after, layer_idx=index, offset=hidden_states.shape[1])
            if isinstance(past_key_values, Cache) and not torch.compiler.is_compiling():
                past_key_values.claim(self, index)
        return packed.restore(y), None, past_key_values

    def _past(self, past_key_values: Any) -> tuple[int, LayerState | None]:
        """The layer's entry in a cache, and what it holds of the tokens before these."""
        if torch.compiler.is_compiling():
            index = 0 if self.layer_idx is None else self.layer_idx
            return index, layer_state(past_key_values, index)
        check_cache(past_key_values)
        if isinstance(past_key_values, Cache):
            index = past_key_values.index_of(self, self.layer_idx)
        elif self.layer_idx is None:
            raise ValueError(SHARED)
        elif (self.state_form() or {}).get("attn_state") is not None:
            raise ValueError(
                f"past_key_values must be a swila.layers.Cache for {type(self).__name__}, got "
                f"{type(past_key_values).__name__}, which would add keys and values that are there already"
            )
        else:
            index = self.layer_idx
        past = layer_state(past_key_values, index)
        if past is not None:
            check_form(past, self.state_form(), type(self).__name__, index)
        return index, past

    def state_form(self) -> dict[str, tuple[Shape, ...] | None] | None:
        """Shapes of what this layer carries for one row, by part of a :class:`~swila.layers.cache.LayerState`.

        ``-1`` stands for any size. A part that is None must be absent. None (the default) leaves states unchecked.
        """
        return None

    def mix(self, x: Tensor, past: LayerState | None, context: CallContext) -> tuple[Tensor, LayerState | None]:
        """Mix ``x [B, T, hidden_size]`` (packed: ``[1, T, hidden_size]``), from ``past`` on.

        Returns:
            The output, and with ``context.return_state`` what the layer carries on.
        """
        raise NotImplementedError

    def merge(self, past: LayerState, after: LayerState, rows: Tensor) -> LayerState:
        """The state of the whole batch when only some of its ``rows`` had a token: ``past`` with those replaced."""
        return merge_rows({key: past.get(key) for key in after}, after, rows)

    def step(self, x: Tensor, state: LayerState, alive: Tensor) -> Tensor:
        """One token for decoding, over the old state, whose addresses stay.

        This is for any layer whose state keeps its shape; those that can write over it as they go have their own.

        Args:
            x: ``[B, 1, hidden_size]``.
            state: of :meth:`decoding_state`; it is written to.
            alive: which rows take the step, bool ``[B]``; the others keep their state, their output means nothing.
        """
        y, after = self.mix(x, state, CallContext(return_state=True))
        assert after is not None
        before = {part: state[part] for part in after}  # type: ignore[literal-required]
        map_tensors(lambda old, new: old.copy_(torch.where(per_row(alive, old), new, old)), before, after)
        return y

    def decoding_state(self, state: LayerState, capacity: int) -> LayerState:
        """A copy of what a cache holds of this layer in the form :meth:`step` takes, with room for ``capacity`` tokens.

        What does not grow needs no room.
        """
        return map_tensors(lambda t: t.clone(memory_format=torch.contiguous_format), state)

    def cached_state(self, state: LayerState) -> LayerState:
        """The way back from :meth:`decoding_state`, a copy as well."""
        return map_tensors(torch.clone, state)

    def auxiliary_loss(self) -> Tensor | None:
        """The load-balancing loss of the last call in training, once; None if there is none, or it was taken.

        To be taken between the forward and the backward call. With gradient checkpointing use the kind that is not
        reentrant; the other one runs the call without gradients.
        """
        return self.last_call.take_loss()

    def state_size(self, length: int = 1) -> int:
        """Scalars of memory carried after ``length`` tokens: the recurrent matrices alone, or keys and values.

        As in the paper, convolution buffers and SwiLA's last responsibilities are not counted.
        """
        raise NotImplementedError
