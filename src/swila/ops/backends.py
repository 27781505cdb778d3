"""The table of backends: what each provides, which serve a call, and which one is chosen.

A backend is a module with a ``BACKEND`` object. :data:`_MODULES` lists them fastest first. A module is imported on
first use, so that the optional package it needs is not imported otherwise.
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
        name: Name of the backend, the value of ``backend=``.
        summary: One-line description for ``swila info``.
        forward: ``(inputs, options, save) -> (results, saved)``; ``saved`` is what the backward needs, with ``save``.
        backward: ``(inputs, options, saved, grads) -> gradients`` of every floating input of the call, by name. Entries
            of ``grads`` are None where the loss does not depend on the result.
        saved_like: ``(inputs, options) -> saved`` as empty tensors of the same shapes, for tracing.
        differentiable: The forward as torch code that autograd can trace, or None; used in eager mode.
        backward_of_logits: As ``backward``, with the gradient of the logits of ``beta`` in place of its own, where
            ``beta`` is their sigmoid; or None.
        step: ``(inputs, options) -> results`` for T = 1, an implementation for decoding, or None.
        step_inplace: The same, writing the new state into the old one.
        step_takes_alive: Whether ``step_inplace`` has a third argument, the rows to update (bool ``[B]``, or None).
        step_has_gradients: Whether autograd can trace ``step``.
        unusable: Returns why the backend cannot run on this machine, or None.
        refuses: Returns why the backend cannot serve a problem, or None.
        capturable: Whether a CUDA graph can capture a forward without gradients, also on packed sequences: the host
            launches kernels, and does not read from the device.
        slow_on_gpu: Whether ``auto`` warns once when it has to choose this backend for a GPU.
        operand_bits: Returns the significand bits of the operands of matrix products for a dtype of q, or None for full
            precision.
    """

    name: str
    summary: str
    forward: Callable[[Inputs, Options, bool], tuple[Results, list[Tensor]]]
    backward: Callable[[Inputs, Options, list[Tensor], Results], dict[str, Tensor]]
    saved_like: Callable[[Inputs, Options], list[Tensor]] = lambda x, options: []
    differentiable: Callable[[Inputs, Options], Results] | None = None
    backward_of_logits: Callable[[Inputs, Options, list[Tensor], Results], dict[str, Tensor]] | None = None
    step: Callable[[Inputs, Options], Results] | None = None
    step_inplace: Callable[..., Results] | None = None
    step_takes_alive: bool = False
    step_has_gradients: bool = True
    unusable: Callable[[], str | None] = _no_objection
    refuses: Callable[[Problem], str | None] = _no_objection
    capturable: bool = False
    slow_on_gpu: bool = False
    operand_bits: Callable[[torch.dtype], int | None] = _no_objection

    def run_step_in_place(self, x: Inputs, options: Options, alive: Tensor | None = None) -> Results:
        """Run the step in place: by ``step_inplace`` if possible, else by copying the new state into the old one.

        Rows that are not ``alive`` (bool ``[B]``; None: all are) keep their state bit for bit.
        """
        if self.step_inplace is not None and all(t is None or t.is_contiguous() for t in (x.W, x.r, x.rho)):
            if self.step_takes_alive:
                return self.step_inplace(x, options, alive)
            if alive is None:
                return self.step_inplace(x, options)
        results = self.forward(x, options, False)[0] if self.step is None else self.step(x, options)
        for old, new in zip((x.W, x.r, x.rho), results.final, strict=True):
            if old is not None and new is not None:
                old.copy_(new if alive is None else torch.where(alive.view(-1, *[1] * (old.ndim - 1)), new, old))
        return results._replace(W=x.W, r=x.r, rho=x.rho)


def register_backend(backend: Backend) -> None:
    """Add a backend. ``auto`` tries it before the others; one with the name of a built-in backend replaces that one."""
    if backend.name == "auto":
        raise ValueError("name must not be 'auto', got 'auto'")
    _registered[backend.name] = backend


def unregister_backend(name: str) -> None:
    """Remove a backend that :func:`register_backend` added."""
    _registered.pop(name, None)


def registered_backends() -> tuple[Backend, ...]:
    """The backends that :func:`register_backend` added."""
    return tuple(_registered.values())


def backend_names() -> list[str]:
    """Names of all backends, in the order in which ``auto`` tries them."""
    return [name for name in _registered if name not in _MODULES] + list(_MODULES)


def get_backend(name: str) -> Backend:
    """The backend of that name; a ValueError that lists all names if there is none."""
    if isinstance(name, str) and name in _registered:
        return _registered[name]
    if not isinstance(name, str) or name not in _MODULES:
        raise ValueError(f"backend must be 'auto' or one of {', '.join(map(repr, backend_names()))}, got {name!r}")
    return importlib.import_module(_MODULES[name]).BACKEND


def all_backends() -> Iterator[Backend]:
    """Every backend, fastest first."""
    return map(get_backend, backend_names())


def usable_backends() -> list[str]:
    """Names of the backends that can run on this machine."""
    return [backend.name for backend in all_backends() if backend.unusable() is None]


def why_not(backend: Backend, problem: Problem) -> str | None:
    """The reason the backend cannot serve the problem here, or None."""
    return backend.unusable() or backend.refuses(problem)


def choose_backend(name: str, problem: Problem, step: bool = False) -> Backend:
    """The named backend, or with ``"auto"`` the first that serves the problem; an explicit choice never falls back.

    ``"auto:a,b"`` considers only the backends named. With ``step``, ``auto`` considers only those with a decode step.
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
