"""A hash that identifies the model of a state: a state is valid only for the weights it was made with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

# Options that do not affect a state.
WITHOUT_EFFECT = ("backend", "track_routing", "balance_marginal", "balance_conditional", "balance_scale")
SAMPLED = 64  # evenly spaced values of each parameter that are compared in every call
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integer dtype by size in bytes

Known = tuple[Any, ...]
_known: WeakKeyDictionary[Any, tuple[Known, str]] = WeakKeyDictionary()


def weights_fingerprint(model: Any) -> str:
    """Return a hash of the layers' options, and of name, shape, dtype and values of every parameter.

    The hash is cached until a parameter is replaced or written to. On the CPU, a write through ``parameter.data`` is
    detected if it changes one of the sampled values. On a GPU, where reading them would wait for the device, such a
    write is not detected, nor is one by a replayed CUDA graph.
    """
    parameters = list(model.parameters())
    places = tuple((p.data_ptr(), p.dtype, 0 if p.is_inference() else p._version) for p in parameters)
    sampled = _host(_sample(p) for p in parameters) if model.device.type == "cpu" else b""
    now = json.dumps(_options(model), sort_keys=True, default=str), places, sampled
    known = _known.get(model)
    if known is None or known[0] != now:
        shapes = [(name, str(p.dtype), list(p.shape)) for name, p in model.named_parameters()]
        about = json.dumps([*_options(model), shapes], sort_keys=True, default=str)
        sums = _host(part for p in parameters for part in _sums(p))
        known = _known[model] = now, hashlib.sha256(about.encode() + sums).hexdigest()
    return known[1]


def _options(model: Any) -> list[Any]:
    """Return the architecture and its options."""
    config = model.config
    options = {
        mixer: {name: value for name, value in config.options_of(mixer).items() if name not in WITHOUT_EFFECT}
        for mixer in dict.fromkeys(config.layer_mixers)
    }
    return [config.layer_mixers, options, config.norm_eps]


def _bits(p: Tensor) -> Tensor:
    return p.detach().view(BITS[p.element_size()])


def _sample(p: Tensor) -> Tensor:
    flat = _bits(p).flatten()
    return flat[:: max(1, len(flat) // SAMPLED)]


def _sums(p: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums of a parameter's bits over rows and over columns, as integers: exact in any order, on any device."""
    matrix = _bits(p).reshape(p.shape[0] if p.ndim > 1 else 1, -1)
    return matrix.sum(0, dtype=matrix.dtype), matrix.sum(1, dtype=matrix.dtype)


def _host(tensors: Iterable[Tensor]) -> bytes:
    """Return the bytes of tensors, with one copy to the host per device and dtype."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for t in tensors:
        by_kind.setdefault((t.device, t.dtype), []).append(t)
    return b"".join(torch.cat(parts).cpu().numpy().tobytes() for parts in by_kind.values())
