"""The interface of every sequence layer: SwiLA, its baselines, and layers of users."""

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
    """Base class of layers that mix tokens along time.

    :meth:`forward` has the signature of flash-linear-attention's layers. It handles padding, packed sequences and the
    cache. A subclass implements :meth:`mix`, for dense or packed sequences, and :meth:`state_size`.

    Args:
        hidden_size: Width of the input and output.
        layer_idx: Index of the layer in the model; its key in a shared cache.
    """

    def __init__(self, hidden_size: int, layer_idx: int | None = None) -> None:
        super().__init__()
        check_counts(hidden_size=hidden_size)
        if layer_idx is not None and (not isinstance(layer_idx, int) or layer_idx < 0):
            raise ValueError(f"layer_idx must be the index of the layer in the model, 0 or more, got {layer_idx!r}")
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
            hidden_states: Input ``[B, T, hidden_size]``.
            attention_mask: 1 for tokens and 0 for padding, ``[B, T]``. With a cache it may cover the whole text,
                ``[B, past tokens + T]``; only the last T columns are used.
            past_key_values: :class:`~swila.layers.Cache` of the previous tokens; it is read and updated.
            use_cache: Whether to create a cache if none is given.
            output_attentions: Must be False; accepted because callers pass it.
            cu_seqlens: Boundaries of packed sequences, int ``[N + 1]``; requires B = 1. A cache then has N rows.

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
            raise ValueError("output_attentions must be False: this layer computes no attention matrix")
        if cu_seqlens is not None:
            check_packing(cu_seqlens, hidden_states)
        if self.training:
            self.last_call.loss = None
        if past_key_values is None and use_cache:
            past_key_values = Cache()
        index, past = 0, None
        if (
            past_key_values is not None
        ):  # layer_idx is read only with a cache, so that one compiled graph serves all layers
            index, past = self._past(past_key_values)
        seen = past_key_values.get_seq_length(index) if past is not None and attention_mask is not None else 0
        packed = pack(hidden_states, attention_mask, cu_seqlens, seen)
        num_sequences = hidden_states.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        if past is not None and batch_size(past) != num_sequences:
            raise ValueError(
                f"past_key_values must have a row for each of {num_sequences} sequences, got {batch_size(past)}"
            )
        if packed.rows is not None and past is None and past_key_values is not None:
            raise ValueError("attention_mask must leave every row at least one token in the first call with a cache")

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
        """Return the index of the layer's entry in a cache, and its state or None."""
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
                f"{type(past_key_values).__name__}, which would append keys and values a second time"
            )
        else:
            index = self.layer_idx
        past = layer_state(past_key_values, index)
        if past is not None:
            check_form(past, self.state_form(), type(self).__name__, index)
        return index, past

    def state_form(self) -> dict[str, tuple[Shape, ...] | None] | None:
        """Return the shapes of the layer's state for one row, by part of a :class:`~swila.layers.cache.LayerState`.

        ``-1`` stands for any size; None for a part that must be absent. Returning None (default) disables the check.
        """
        return None

    def mix(self, x: Tensor, past: LayerState | None, context: CallContext) -> tuple[Tensor, LayerState | None]:
        """Mix ``x [B, T, hidden_size]`` (packed: ``[1, T, hidden_size]``), starting from the state ``past``.

        Returns:
            The output, and the new state if ``context.return_state``, else None.
        """
        raise NotImplementedError

    def merge(self, past: LayerState, after: LayerState, rows: Tensor) -> LayerState:
        """Return the state of a batch in which only ``rows`` had tokens: ``past`` with these replaced by ``after``."""
        return merge_rows({key: past.get(key) for key in after}, after, rows)

    def step(self, x: Tensor, state: LayerState, alive: Tensor) -> Tensor:
        """Run one decode step, updating the state in place.

        This version works for any layer whose state keeps its shape, and copies the new state over the old one. Layers
        that compute in place override it.

        Args:
            x: Input ``[B, 1, hidden_size]``.
            state: State from :meth:`decoding_state`; updated in place.
            alive: Rows to update, bool ``[B]``. The other rows keep their state; their output is undefined.
        """
        y, after = self.mix(x, state, CallContext(return_state=True))
        assert after is not None
        before = {part: state[part] for part in after}  # type: ignore[literal-required]
        map_tensors(lambda old, new: old.copy_(torch.where(per_row(alive, old), new, old)), before, after)
        return y

    def decoding_state(self, state: LayerState, capacity: int) -> LayerState:
        """Return a copy of this layer's cached state for :meth:`step`, with room for ``capacity`` tokens.

        Only states that grow with the text need the room.
        """
        return map_tensors(lambda t: t.clone(memory_format=torch.contiguous_format), state)

    def cached_state(self, state: LayerState) -> LayerState:
        """Return a copy of a decoding state in the form that a cache holds; the inverse of :meth:`decoding_state`."""
        return map_tensors(torch.clone, state)

    def auxiliary_loss(self) -> Tensor | None:
        """Return the load-balancing loss of the last call in training, once; None if there is none or it was taken.

        Call this between forward and backward. Gradient checkpointing must use ``use_reentrant=False``: the reentrant
        version runs the forward call without gradients.
        """
        return self.last_call.take_loss()

    def state_size(self, length: int = 1) -> int:
        """Return the number of scalars in the state after ``length`` tokens: recurrent matrices, or keys and values.

        As in the paper, states of convolutions and SwiLA's last responsibilities are not counted.
        """
        raise NotImplementedError

    def mixing_flops(self, length: int) -> float:
        """Return the floating-point operations per token of mixing along time, in sequences of ``length`` tokens.

        They are those of the forward pass, without ``Linear`` modules and convolutions, which are counted elsewhere.
        The default is 0: a layer that does not override this method is counted by its ``Linear`` modules alone.
        """
        return 0.0
