"""What the layers of a model carry from one call to the next."""

from __future__ import annotations

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

    def __init__(self) -> None:
        self._states: dict[int, LayerState] = {}
        self._tokens: dict[int, int] = {}

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
        state = LayerState(recurrent_state=recurrent_state, attn_state=attn_state, conv_state=conv_state)
        self._states[layer_idx] = state
        self._tokens[layer_idx] = self.get_seq_length(layer_idx) + offset
        return state

    def map(self, function: Callable[[Tensor], Tensor]) -> Cache:
        """A new cache with the function applied to every tensor, for example ``lambda t: t.detach()``."""
        new = Cache()
        new._tokens = dict(self._tokens)
        new._states = {i: map_tensors(function, state) for i, state in self._states.items()}
        return new

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
    if past_key_values is None or len(past_key_values) <= layer_idx:
        return None
    if isinstance(past_key_values, Cache) and layer_idx not in past_key_values:
        return None
    state = past_key_values[layer_idx]
    return state if state and any(part is not None for part in state.values()) else None


def batch_rows(state: LayerState) -> int:
    """Rows of the batch a state belongs to."""
    found: list[int] = []
    map_tensors(lambda t: (found.append(t.shape[0]), t)[1], dict(state))  # type: ignore[func-returns-value]
    return found[0] if found else 0


def merge_rows(old: Any, new: Any, rows: Tensor) -> Any:
    """``old`` with the given rows replaced by ``new``, in nested states of the same form."""
    return map_tensors(lambda before, after: before.index_copy(0, rows, after.to(before.dtype)), old, new)


def select_rows(state: Any, rows: Tensor) -> Any:
    """The given rows of the batch of a nested state."""
    return map_tensors(lambda t: torch.index_select(t, 0, rows), state)
