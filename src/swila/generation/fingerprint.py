"""A short text that tells which model a state belongs to: a state is of use only to the weights it was made with."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

WITHOUT_EFFECT = ("backend", "track_routing", "balance_marginal", "balance_conditional", "balance_scale")  # on a state
SAMPLED = 64  # values of each parameter, evenly spaced

Places = tuple[tuple[int, int], ...]
_known: WeakKeyDictionary[Any, tuple[Places, str]] = WeakKeyDictionary()


def weights_fingerprint(model: Any) -> str:
    """Return a hash of the layers' options, and of name, shape, dtype and some values of every parameter.

    On a GPU reading the values waits for the device, so the hash is kept until a parameter is replaced or written to. A
    write through ``parameter.data``, or by a replayed CUDA graph, is not noticed there.
    """
    if model.device.type == "cpu":
        return _hash(model)
    places = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters())
    known = _known.get(model)
    if known is None or known[0] != places:
        known = _known[model] = places, _hash(model)
    return known[1]


def _hash(model: Any) -> str:
    config = model.config
    options = {
        mixer: {name: value for name, value in config.options_of(mixer).items() if name not in WITHOUT_EFFECT}
        for mixer in dict.fromkeys(config.layer_mixers)
    }
    parameters = dict(model.named_parameters())
    shapes = [(name, str(p.dtype), list(p.shape)) for name, p in parameters.items()]
    about = [config.layer_mixers, options, config.norm_eps, shapes]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}  # one copy to the host for each
    for p in parameters.values():
        flat = p.detach().flatten()
        by_kind.setdefault((p.device, p.dtype), []).append(flat[:: max(1, len(flat) // SAMPLED)])
    for values in by_kind.values():
        digest.update(torch.cat(values).cpu().double().numpy().tobytes())
    return digest.hexdigest()
