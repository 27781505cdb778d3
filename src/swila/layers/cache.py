"""What the layers of a model carry from one call to the next."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypedDict

import torch
from torch import Tensor


class LayerState(TypedDict, total=False):
    """What one layer carries; each entry a tensor or a (nested) tuple of tensors, with the batch in front."""

    recurrent_state: Any
    attn_state: Any
    conv_state: Any


class Cache:
    """States of the layers of a model, by ``layer_idx``.

    The protocol (``cache[i]`` is a dict, ``update(..., layer_idx=, offset=)``) is that of flash-linear-attention, so
    the recurrent layers work with its cache as well. An update replaces what the layer carried before.
    """

    is_compileable = False  # transformers asks

    def __init__(self) -> None:
        self._states: dict[int, LayerState] = {}
        self._tokens: dict[int, int] = {}
        self._owner: weakref.ref[Any] | None = None

    def belongs_to(self, layer: Any) -> bool:
        """Whether a layer that was given no index may use this cache: it is new, or was always this layer's alone."""
        if self._owner is None and not self._states:
            self._owner = weakref.ref(layer)
        return self._owner is not None and self._owner() is layer

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None}

    def __len__(self) -> int:
        return max(self._states, default=-1) + 1

    def __getitem__(self, layer_idx: int) -> LayerState:
        if layer_idx not in self._states:
            raise IndexError(f"the cache holds nothing of layer {layer_idx}; it has {sorted(self._states)}")
        return self._states[layer_idx]

    def __contains__(self, layer_idx: object) -> bool:
        return layer_idx in self._states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens the layer has seen, padding included."""
        return self._tokens.get(layer_idx, 0)

    def set_seq_length(self, tokens: int) -> None:
        """Say how many tokens of each row the layers have seen; a model that takes the padding out knows better."""
        self._tokens = dict.fromkeys(self._states, tokens)

    def update(
        self,
        *,
        recurrent_state: Any = None,
        attn_state: Any = None,
        conv_state: Any = None,
        layer_idx: int = 0,
        offset: int = 1,
    ) -> LayerState:
        """Replace the state of a layer, ``offset`` tokens later."""
        # a dict display, because compilers do not know TypedDict's constructor
        state: LayerState = {"recurrent_state": recurrent_state, "attn_state": attn_state, "conv_state": conv_state}
        self._states[layer_idx] = state
        self._tokens[layer_idx] = self.get_seq_length(layer_idx) + offset
        return state

    def map(self, function: Callable[[Tensor], Tensor]) -> Cache:
        """A new cache with the function applied to every tensor, for example ``lambda t: t.detach()``."""
        new = Cache()
        new._tokens, new._owner = dict(self._tokens), self._owner
        new._states = {i: map_tensors(function, state) for i, state in self._states.items()}
        return new

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """:meth:`batch_select` in this very object, as transformers calls it."""
        self._states = self.batch_select(beam_idx)._states

    def crop(self, max_length: int) -> None:
        """What transformers calls to take tokens back, which a recurrent state cannot."""
        raise ValueError("a recurrent state cannot be rolled back: keep a copy (cache.map(torch.clone)) to return to")

    def batch_select(self, indices: Tensor) -> Cache:
        """A new cache with the rows of the batch in another order, repeated or left out (beam search)."""
        return self.map(lambda t: t.index_select(0, indices.to(t.device)))


def map_tensors(function: Callable[..., Tensor], *trees: Any) -> Any:
    """The function applied to the tensors of nested dicts and tuples of the same form."""
    first = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)
    if isinstance(first, dict):
        return {key: map_tensors(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        parts = [map_tensors(function, *parts) for parts in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return first


def layer_state(past_key_values: Any, layer_idx: int) -> LayerState | None:
    """What a cache (ours or flash-linear-attention's) holds of a layer, or None."""
    if past_key_values is None:
        return None
    known = layer_idx in past_key_values if isinstance(past_key_values, Cache) else layer_idx < len(past_key_values)
    if not known:
        return None
    state = past_key_values[layer_idx]
    return state if state and any(part is not None for part in state.values()) else None


def batch_rows(state: LayerState) -> int:
    """Rows of the batch a state belongs to."""
    parts: Any = tuple(state.values())
    while not isinstance(parts, Tensor):
        parts = next(part for part in parts if part is not None)
    return parts.shape[0]


def merge_rows(old: Any, new: Any, rows: Tensor) -> Any:
    """``old`` with the given rows replaced by ``new``, in nested states of the same form."""
    return map_tensors(lambda before, after: before.index_copy(0, rows, after.to(before.dtype)), old, new)


def select_rows(state: Any, rows: Tensor) -> Any:
    """The given rows of the batch of a nested state."""
    return map_tensors(lambda t: torch.index_select(t, 0, rows), state)
