"""The states of a model's layers between calls."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F

Shape = tuple[int, ...] | None
SHARED = "layer_idx must be given, and differ between layers, for layers that share a cache"


class LayerState(TypedDict, total=False):
    """State of one layer; each entry is a tensor or a (nested) tuple of tensors with the batch as first dimension."""

    recurrent_state: Any
    attn_state: Any
    conv_state: Any


class Cache:
    """States of a model's layers, by ``layer_idx``.

    The protocol (``cache[i]`` is a dict, ``update(..., layer_idx=, offset=)``) is that of flash-linear-attention, so
    recurrent layers also work with its cache. An update replaces the layer's previous state. An entry belongs to the
    layer that wrote it: another layer with the same index raises ValueError (not under ``torch.compile``).
    """

    is_compileable = False  # read by transformers

    def __init__(self) -> None:
        self._states: dict[int, LayerState] = {}
        self._tokens: dict[int, int] = {}
        self._owners: dict[int, weakref.ref[Any]] = {}  # empty after unpickling or reading from a file
        self._handed_over = False

    def index_of(self, layer: Any, layer_idx: int | None) -> int:
        """Return the index of a layer's entry; raise ValueError if the entry belongs to another layer.

        A layer without an index uses entry 0 of a cache that no other layer uses.
        """
        index = 0 if layer_idx is None else layer_idx
        owner = self._owners.get(index)
        if owner is None and layer_idx is None and self._states and not (self._handed_over and len(self) == 1):
            raise ValueError(SHARED)
        if owner is not None and owner() is not layer:
            if layer_idx is None:
                raise ValueError(SHARED)
            raise ValueError(
                f"layer_idx must be different for each layer that shares a cache, got {layer_idx} for a second layer: "
                f"entry {layer_idx} of past_key_values was written by another layer (to transfer it on purpose, pass "
                "past_key_values.released())"
            )
        return index

    def claim(self, layer: Any, index: int) -> None:
        """Record the layer that wrote an entry as its owner."""
        self._owners[index] = weakref.ref(layer)

    def released(self) -> Cache:
        """Return a cache with the same tensors and no owners, to continue with other layer objects."""
        new = self.map(lambda t: t)
        new._owners, new._handed_over = {}, True
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        new = self.map(torch.clone)
        for index, owner in self._owners.items():  # the layer may be copied in the same call
            layer = owner()
            new._owners[index] = weakref.ref(memo.get(id(layer), layer)) if layer is not None else owner
        new._handed_over = self._handed_over
        return new

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owners": {}}

    def __len__(self) -> int:
        return max(self._states, default=-1) + 1

    def __getitem__(self, layer_idx: int) -> LayerState:
        if layer_idx not in self._states:
            raise IndexError(f"the cache has no state of layer {layer_idx}; it has states of {sorted(self._states)}")
        return self._states[layer_idx]

    def __contains__(self, layer_idx: object) -> bool:
        return layer_idx in self._states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens that the layer has processed, padding included."""
        return self._tokens.get(layer_idx, 0)

    def seen_by(self, layers: int) -> int:
        """Return the number of tokens processed by layers 0, 1, ...; raise ValueError unless it is the same for all."""
        seen = {self.get_seq_length(i) for i in range(layers)}
        if len(seen) > 1:
            raise ValueError(
                f"past_key_values must come from a call that completed all {layers} layers, got one whose layers have "
                f"processed {' and '.join(map(str, sorted(seen)))} tokens (did a call fail half-way?); start with a "
                "new cache, or keep a copy before each call (past_key_values.map(torch.clone))"
            )
        return seen.pop()

    def set_seq_length(self, tokens: int) -> None:
        """Set the number of processed tokens of all layers, for models that remove the padding before the layers."""
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
        """Replace the state of a layer after ``offset`` more tokens."""
        # a dict display, because torch.compile does not support TypedDict's constructor
        state: LayerState = {"recurrent_state": recurrent_state, "attn_state": attn_state, "conv_state": conv_state}
        self._states[layer_idx] = state
        self._tokens[layer_idx] = self.get_seq_length(layer_idx) + offset
        return state

    def map(self, function: Callable[[Tensor], Tensor]) -> Cache:
        """Return a new cache with the function applied to every tensor, for example ``lambda t: t.detach()``."""
        new = Cache()
        new._tokens, new._owners = dict(self._tokens), dict(self._owners)
        new._states = {i: map_tensors(function, state) for i, state in self._states.items()}
        return new

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """:meth:`batch_select` in place, under the name that transformers calls."""
        self._states = self.batch_select(beam_idx)._states

    def crop(self, max_length: int) -> None:
        """Raise ValueError: a recurrent state cannot remove tokens. Transformers calls this method."""
        raise ValueError("a recurrent state cannot be rolled back; keep a copy to return to (cache.map(torch.clone))")

    def batch_select(self, indices: Tensor) -> Cache:
        """Return a new cache with the given rows of the batch, in that order (for beam search)."""
        return self.map(lambda t: t.index_select(0, indices.to(t.device)))


def map_tensors(function: Callable[..., Tensor], *trees: Any) -> Any:
    """Apply a function to the tensors of nested dicts and tuples of the same structure."""
    first = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)
    if isinstance(first, dict):
        return {key: map_tensors(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        parts = [map_tensors(function, *parts) for parts in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return first


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of nested dicts and tuples, in order."""
    found: list[Tensor] = []

    def note(t: Tensor) -> Tensor:
        found.append(t)
        return t

    map_tensors(note, tree)
    return found


def check_cache(past_key_values: Any) -> None:
    """Raise ValueError unless this is a :class:`Cache` or has the methods of flash-linear-attention's cache."""
    if isinstance(past_key_values, Cache):
        return
    update = getattr(past_key_values, "update", None)
    try:
        accepted = inspect.signature(update).parameters if callable(update) else {}
    except (TypeError, ValueError):
        accepted = {}
    if "recurrent_state" not in accepted or not hasattr(past_key_values, "__getitem__"):
        raise ValueError(
            f"past_key_values must be a swila.layers.Cache (or flash-linear-attention's), got "
            f"{type(past_key_values).__name__}; to start with an empty one, omit it and pass use_cache=True"
        )


def layer_state(past_key_values: Any, layer_idx: int) -> LayerState | None:
    """Return the state of a layer in a cache (ours or flash-linear-attention's), or None."""
    known = layer_idx in past_key_values if isinstance(past_key_values, Cache) else layer_idx < len(past_key_values)
    if not known:
        return None
    state = past_key_values[layer_idx]
    return state if state and any(part is not None for part in state.values()) else None


def check_form(
    state: LayerState, form: Mapping[str, tuple[Shape, ...] | None] | None, layer: str, layer_idx: int
) -> None:
    """Raise ValueError unless a state has the parts and shapes that a layer needs; see ``SequenceMixer.state_form``."""
    for part, needed in (form or {}).items():
        given: Any = state.get(part)
        entries = given if isinstance(given, tuple | list) else (given,)
        found = None if given is None else tuple(None if t is None else tuple(t.shape[1:]) for t in entries)
        if not _same_form(found, needed):
            raise ValueError(
                f"past_key_values holds the state of another layer in entry {layer_idx}: {layer} needs {part} "
                f"{_describe(needed)}, got {_describe(found)}"
            )


def _same_form(found: Any, needed: Any) -> bool:
    """Return whether nested tuples of sizes are equal, where -1 matches any size."""
    if isinstance(found, tuple) and isinstance(needed, tuple):
        return len(found) == len(needed) and all(map(_same_form, found, needed))
    return found == needed or (needed == -1 and isinstance(found, int))


def _describe(shapes: tuple[Shape, ...] | None) -> str:
    if shapes is None:
        return "absent"
    described = ["None" if s is None else f"[rows, {', '.join('T' if n == -1 else str(n) for n in s)}]" for s in shapes]
    return f"of shapes {', '.join(described)}"


def batch_size(state: LayerState) -> int:
    """Return the batch size of a state."""
    return tensors(state)[0].shape[0]


def merge_rows(old: Any, new: Any, rows: Tensor) -> Any:
    """Return ``old`` with the given rows replaced by ``new``, for nested states of the same structure."""
    return map_tensors(lambda before, after: before.index_copy(0, rows, after.to(before.dtype)), old, new)


def join_rows(caches: Sequence[Cache]) -> Cache:
    """Return a cache with the rows of several, one after another; the given ones are emptied, to save memory.

    Keys and values are padded to those of the longest.
    """
    new = Cache()
    new._owners = dict(caches[0]._owners)
    new._tokens = {i: max(cache._tokens[i] for cache in caches) for i in caches[0]._tokens}
    for i in sorted(caches[0]._states):
        states = [cache._states.pop(i) for cache in caches]
        kept: list[Any] = [state.pop("attn_state", None) for state in states]
        joined = map_tensors(lambda *parts: torch.cat(parts), *states)
        if kept[0] is not None:
            kept = [_padded(parts, max(part[-1].shape[1] for part in kept)) for parts in kept]
            kept[:1] = [map_tensors(lambda *parts: torch.cat(parts), *kept)]
        new._states[i] = {**joined, "attn_state": kept[0]}
    return new


def _padded(parts: tuple[Tensor, ...], length: int) -> tuple[Tensor, ...]:
    """Return tensors ``[N, S, ...]`` of S tokens with ``length`` of them, the last ones 0."""
    return tuple(F.pad(t, (0, 0) * (t.ndim - 2) + (0, length - t.shape[1])) for t in parts)


def select_rows(state: Any, rows: Tensor) -> Any:
    """Return the given rows of a nested state."""
    return map_tensors(lambda t: torch.index_select(t, 0, rows), state)
