"""The backend that serves a call: checks the call, chooses a backend, and caches the choice by description."""

from __future__ import annotations

from collections.abc import Hashable

from swila.ops.backends import Backend, choose_backend, registered_backends
from swila.ops.call import Inputs, Options, Problem
from swila.ops.validation import check_call

_MOST = 4096  # cached descriptions
_chosen: dict[Hashable, Backend] = {}


def serving_backend(x: Inputs, options: Options, name: str, needs_grad: bool, step: bool = False) -> Backend:
    """The backend of a call; ValueError if the call is invalid or no backend serves it.

    The checks and the choice depend only on shapes, dtypes, devices and options. The result is cached by them, so that
    repeated calls are not checked again. Values are checked elsewhere (:func:`~swila.ops.validation.check_values`).

    Args:
        x: Tensors of the call.
        options: Options of the call.
        name: Name of a backend, ``"auto"``, or ``"auto:a,b"``; see :func:`~swila.ops.backends.choose_backend`.
        needs_grad: Whether a backward will follow.
        step: Whether this is a decode step.
    """
    key: Hashable = None
    try:
        key = (
            name, needs_grad, step, options, *map(type, options), registered_backends(),
            *[None if t is None else (t.shape, t.dtype, t.device, t.layout) for t in x],
        )  # fmt: skip
        found = _chosen.get(key)
    except (TypeError, AttributeError):  # symbolic sizes, which do not hash; or invalid arguments
        key, found = None, None
    if found is None:
        check_call(x, options)
        found = choose_backend(name, Problem.of(x, options, needs_grad), step)
        if key is not None:
            if len(_chosen) >= _MOST:
                _chosen.clear()
            _chosen[key] = found
    return found
