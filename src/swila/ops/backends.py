"""The table of backends: what each offers, which serve a call, and which one is taken.

A backend is one module with a ``BACKEND`` object; its place in :data:`_MODULES` is its rank (fastest first).
Modules are imported when first asked about, so an optional package behind one is never imported for nothing.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from swila.ops.call import Inputs, Options, Problem, Results

_MODULES = {
    "cuda": "swila.ops.cuda.backend",
    "numba": "swila.ops.numba.backend",
    "blocked": "swila.ops.blocked.backend",
    "reference": "swila.ops.reference",
}
_registered: dict[str, Backend] = {}
_said: set[str] = set()


def _no_objection(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Backend:
    """One implementation of the operation.

    Attributes:
        name: what users write in ``backend=``.
        summary: one line for ``swila info``.
        forward: ``(inputs, options, save) -> (results, saved)``; with ``save`` it returns what its backward needs.
        backward: ``(inputs, options, saved, grads) -> gradients`` of every floating input the call has, by name; of
            the results' ``grads``, those that nothing depends on are None.
        saved_like: ``(inputs, options) -> saved`` with empty tensors of the same shapes, for tracing.
        differentiable: the forward as autograd-traceable torch code, where the backend has one; used in eager mode.
        step: ``(inputs, options) -> results`` for T = 1, where the backend has a way made for decoding.
        step_inplace: the same with the new state written over the old one.
        step_has_gradients: whether autograd can trace ``step``.
        unusable: why it cannot run on this machine, or None.
        refuses: why it cannot serve a problem, or None.
        slow_on_gpu: ``auto`` says so once when it must take this one for a GPU.
        operand_bits: bits of the significand that matrix units see of a number, by dtype of q; None for all of them.
    """

    name: str
    summary: str
    forward: Callable[[Inputs, Options, bool], tuple[Results, list[Tensor]]]
    backward: Callable[[Inputs, Options, list[Tensor], Results], dict[str, Tensor]]
    saved_like: Callable[[Inputs, Options], list[Tensor]] = lambda x, options: []
    differentiable: Callable[[Inputs, Options], Results] | None = None
    step: Callable[[Inputs, Options], Results] | None = None
    step_inplace: Callable[[Inputs, Options], Results] | None = None
    step_has_gradients: bool = True
    unusable: Callable[[], str | None] = _no_objection
    refuses: Callable[[Problem], str | None] = _no_objection
    slow_on_gpu: bool = False
    operand_bits: Callable[[torch.dtype], int | None] = _no_objection

    def run_step_in_place(self, x: Inputs, options: Options) -> Results:
        """The step with the new state in the place of the old one, by whichever way there is."""
        if self.step_inplace is not None and all(t is None or t.is_contiguous() for t in (x.W, x.r, x.rho)):
            return self.step_inplace(x, options)
        results = self.forward(x, options, False)[0] if self.step is None else self.step(x, options)
        for old, new in zip((x.W, x.r, x.rho), results.final, strict=True):
            if old is not None and new is not None:
                old.copy_(new)
        return results._replace(W=x.W, r=x.r, rho=x.rho)


def register_backend(backend: Backend) -> None:
    """Add a backend, ahead of the others when ``auto`` chooses; one of a built-in's name takes its place and rank."""
    if backend.name == "auto":
        raise ValueError("name must be a name of the backend's own, got 'auto'")
    _registered[backend.name] = backend


def unregister_backend(name: str) -> None:
    """Take back what :func:`register_backend` added."""
    _registered.pop(name, None)


def registered_backends() -> tuple[Backend, ...]:
    """The backends that :func:`register_backend` added."""
    return tuple(_registered.values())


def backend_names() -> list[str]:
    """All backends, in the order in which ``auto`` tries them."""
    return [name for name in _registered if name not in _MODULES] + list(_MODULES)


def get_backend(name: str) -> Backend:
    """The backend of that name, or a ValueError that lists them."""
    if isinstance(name, str) and name in _registered:
        return _registered[name]
    if not isinstance(name, str) or name not in _MODULES:
        raise ValueError(f"backend must be 'auto' or one of {', '.join(map(repr, backend_names()))}, got {name!r}")
    return importlib.import_module(_MODULES[name]).BACKEND


def all_backends() -> Iterator[Backend]:
    """Every backend, fastest first."""
    return map(get_backend, backend_names())


def usable_backends() -> list[str]:
    """Names of those that can run on this machine."""
    return [backend.name for backend in all_backends() if backend.unusable() is None]


def why_not(backend: Backend, problem: Problem) -> str | None:
    """The reason the backend cannot serve the problem here, or None."""
    return backend.unusable() or backend.refuses(problem)


def choose_backend(name: str, problem: Problem, step: bool = False) -> Backend:
    """The named backend, or with ``"auto"`` the first that serves the problem; an explicit choice never falls back.

    ``"auto:a,b"`` looks at those named alone, and for a decoding ``step`` only at those that have a way made for it.
    """
    auto, _, among = name.partition(":") if isinstance(name, str) else (name, "", "")
    if auto != "auto":
        backend = get_backend(name)
        if reason := why_not(backend, problem):
            raise ValueError(f"backend {name!r} cannot serve this call: {reason}")
        return backend
    refusals: list[str] = []
    for backend in map(get_backend, among.split(",") if among else backend_names()):
        if step and backend.step is None:
            continue
        reason = why_not(backend, problem)
        if reason is None:
            if backend.slow_on_gpu and problem.device not in ("cpu", "meta"):
                _say_slow(backend, problem, refusals)
            return backend
        refusals.append(f"{backend.name}: {reason}")
    raise ValueError("no backend can serve this call: " + "; ".join(refusals))


def _say_slow(backend: Backend, problem: Problem, refusals: list[str]) -> None:
    reasons = "; ".join(refusals) or "no kernel backend is installed"
    what = f"the {backend.name!r} backend ({backend.summary}) on {problem.device}"
    message = f"swila runs {what}, which is slow there: {reasons}"
    if message not in _said:
        _said.add(message)
        warnings.warn(message, stacklevel=2)
