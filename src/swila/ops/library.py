"""The operation as operators of ``torch.library``: schemas, tracing and gradients.

``swila::switching_delta_rule`` returns the results of the call (see :func:`present`), followed by the tensors its
backward needs. ``swila::switching_delta_rule_step_`` overwrites the state. Both look up their backend by name when they
run.

:func:`traced` is the way in under ``torch.compile``: the operator with the autograd formula torch derives for it.
:func:`eager` runs the same operators inside one ``autograd.Function``, at a fraction of the host time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from swila._version import __version__
from swila.ops.backends import Backend, get_backend, usable_backends
from swila.ops.call import DIFFERENTIABLE, STATE, Inputs, Options, Results, empty_results, needs_grad
from swila.ops.choice import serving_backend
from swila.ops.validation import check_values

_OPTIONAL = set(Inputs._field_defaults)
_TENSORS = ", ".join(f"Tensor{'?' if name in _OPTIONAL else ''} {name}" for name in Inputs._fields)
_OPTIONS = "str decay_order, bool normalize, bool return_state, bool routing_stats"
_NUM_INPUTS, _NUM_OPTIONS = len(Inputs._fields), len(Options._fields)

_library = torch.library.Library("swila", "DEF")
# The version is there because compiled graphs are cached on disk by their text, and what a backend keeps may change.
_library.define(f"switching_delta_rule({_TENSORS}, {_OPTIONS}, bool save, str backend, str version) -> Tensor[]")
_library.define(
    f"switching_delta_rule_backward({_TENSORS}, {_OPTIONS}, str backend, Tensor[] saved, Tensor?[] grads) -> Tensor[]"
)
_MUTABLE = _TENSORS
for _mark, _name in zip("abc", STATE, strict=True):
    _MUTABLE = _MUTABLE.replace(f"Tensor? {_name},", f"Tensor({_mark}!)? {_name},")
_library.define(f"switching_delta_rule_step_({_MUTABLE}, {_OPTIONS}, str backend, Tensor? alive) -> Tensor")


_forward_op = torch.ops.swila.switching_delta_rule.default
_backward_op = torch.ops.swila.switching_delta_rule_backward.default
_step_op = torch.ops.swila.switching_delta_rule_step_.default


def traced(x: Inputs, options: Options, backend: str, step: bool = False) -> Results:
    """The call as one opaque node of a graph under ``torch.compile``, differentiable once."""
    if backend == "auto":
        backend = _auto_step() if step else auto_name()
    tensors = _forward_op(*x, *options, needs_grad(x), backend, __version__)
    return as_results(x, options, tensors)


def traced_step_in_place(x: Inputs, options: Options, backend: str, alive: Tensor | None = None) -> Results:
    """The step that overwrites the state, as one opaque node without gradients."""
    if backend == "auto":
        backend = _auto_step()
    return Results(_step_op(*x, *options, backend, alive), x.W, x.r, x.rho)


def eager(x: Inputs, options: Options, backend: str, save: bool) -> Results:
    """The call by the backend of that name, outside ``torch.compile``; the call has been checked.

    Args:
        x: Tensors of the call.
        options: Options of the call.
        backend: Name of the backend that serves it.
        save: Whether autograd needs a backward (:func:`~swila.ops.call.needs_grad`).
    """
    if save:
        return as_results(x, options, _EagerCall.apply(x, options, backend, *_given(x)))
    with torch._C._AutoDispatchBelowAutograd():
        return as_results(x, options, _forward_op(*x, *options, False, backend, __version__))


class _EagerCall(torch.autograd.Function):
    """The registered operators without the generic autograd wrapper of ``torch.library``, which costs 0.2 ms a call."""

    @staticmethod
    def forward(ctx, x: Inputs, options: Options, backend: str, *given: Tensor) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            returned = _forward_op(*x, *options, True, backend, __version__)
        num_results = len(present(x, options))
        ctx.options, ctx.backend, ctx.given = options, backend, [t is not None for t in x]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given, *returned[num_results:])
        return tuple(returned[:num_results])

    @staticmethod
    def backward(ctx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # with create_graph: the operator's own formula refuses second derivatives
            return (None, None, None, *_input_gradients(ctx, grads))
        with torch._C._AutoDispatchBelowAutograd():
            return (None, None, None, *_input_gradients(ctx, grads))


def auto_name() -> str:
    """``auto:`` with the backends that are usable now: a traced graph may be cached and used on another machine."""
    return "auto:" + ",".join(usable_backends())


def _auto_step() -> str:
    """The same for a decode step, with the backends that implement one."""
    return "auto:" + ",".join(name for name in usable_backends() if get_backend(name).step is not None)


# What torch.compiler.assume_constant_result sets; to call that would import torch._dynamo, which takes a second.
auto_name._dynamo_marked_constant = _auto_step._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _names(state: bool, r: bool, rho: bool, stats: bool) -> tuple[str, ...]:
    found = [True, state, state and r, state and rho, *[stats] * 4]
    return tuple(name for name, there in zip(Results._fields, found, strict=True) if there)


_NAMES = {flags: _names(*flags) for flags in itertools.product((False, True), repeat=4)}


def present(x: Inputs, options: Options) -> tuple[str, ...]:
    """Names of the results of a call, in order; every backend returns exactly these."""
    return _NAMES[
        bool(options.return_state), x.key_gate is not None, x.query_gate is not None, bool(options.routing_stats)
    ]


def as_results(x: Inputs, options: Options, tensors: Sequence[Tensor]) -> Results:
    """Return results of the names of :func:`present`, which come first; the tensors that are kept follow."""
    return Results(**dict(zip(present(x, options), tensors, strict=False)))


def _input_gradients(ctx, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of the tensors that the call has, in the order of :class:`Inputs`; None for ``cu_seqlens``."""
    if all(grad is None for grad in grads):
        return [None] * sum(ctx.given)
    tensors = iter(ctx.saved_tensors)  # read once: activation checkpointing forbids a second time
    x = Inputs(*[next(tensors) if given else None for given in ctx.given])  # type: ignore[arg-type]
    computed = _backward_op(*x, *ctx.options, ctx.backend, list(tensors), list(grads))
    return computed if x.cu_seqlens is None else [*computed, None]


def _split(args: tuple) -> tuple[Inputs, Options, tuple]:
    end = _NUM_INPUTS + _NUM_OPTIONS
    return Inputs.of(args[:_NUM_INPUTS]), Options(*args[_NUM_INPUTS:end]), args[end:]


def _given(values: tuple) -> list[Tensor]:
    return [value for value in values if value is not None]


def backend_of(x: Inputs, options: Options, name: str, save: bool, step: bool = False) -> Backend:
    """The named backend, or for the ``auto:`` of a compiled graph the one that serves the call.

    That a named backend serves the call was checked before the operator ran, or while the graph was traced. The graph
    may come from another machine.
    """
    if name.startswith("auto"):
        return serving_backend(x, options, name, save, step)
    backend = get_backend(name)
    if reason := backend.unusable():
        raise ValueError(f"backend {name!r} cannot run here: {reason}")
    return backend


@torch.library.impl(_library, "switching_delta_rule", "CompositeExplicitAutograd")
def _forward(*args) -> list[Tensor]:
    x, options, (save, backend, _) = _split(args)
    check_values(x)
    results, saved = backend_of(x, options, backend, save).forward(x, options, save)
    tensors = _given(results)
    assert len(tensors) == len(present(x, options))
    return [t.contiguous() for t in tensors] + saved  # strides as the tracer was told


@torch.library.impl(_library, "switching_delta_rule_backward", "CompositeExplicitAutograd")
def _backward(*args) -> list[Tensor]:
    x, options, (backend, saved, given) = _split(args)
    grads = Results(**{"output": None, **dict(zip(present(x, options), given, strict=True))})
    computed = backend_of(x, options, backend, True).backward(x, options, saved, grads)
    return [computed[name].contiguous() for name, t in zip(DIFFERENTIABLE, x, strict=False) if t is not None]


@torch.library.impl(_library, "switching_delta_rule_step_", "CompositeExplicitAutograd")
def _step_in_place(*args) -> Tensor:
    x, options, (backend, alive) = _split(args)
    check_values(x)
    return backend_of(x, options, backend, False, step=True).run_step_in_place(x, options, alive).output


@torch.library.register_fake("swila::switching_delta_rule_step_", lib=_library)
def _step_in_place_fake(*args) -> Tensor:
    x, options, (backend, _) = _split(args)
    serving_backend(x, options, backend, False, step=True)
    return empty_results(x, options).output


@torch.library.register_fake("swila::switching_delta_rule", lib=_library)
def _forward_fake(*args) -> list[Tensor]:
    x, options, (save, backend, _) = _split(args)
    chosen = serving_backend(x, options, backend, save)
    return _given(empty_results(x, options)) + (chosen.saved_like(x, options) if save else [])


@torch.library.register_fake("swila::switching_delta_rule_backward", lib=_library)
def _backward_fake(*args) -> list[Tensor]:
    x, _, _ = _split(args)
    return [t.new_empty(t.shape) for t in _given(x[:-1])]


def _setup_context(ctx, inputs, output) -> None:
    x, ctx.options, (_, ctx.backend, _) = _split(inputs)
    ctx.set_materialize_grads(False)  # else zeros come in for everything that is kept
    ctx.num_results = len(present(x, ctx.options))
    ctx.given = [t is not None for t in x]
    ctx.save_for_backward(*_given(x), *output[ctx.num_results :])


def _gradients(ctx, grads):
    computed = iter(_input_gradients(ctx, grads[: ctx.num_results]))
    of_inputs = [next(computed) if given else None for given in ctx.given]
    return (*of_inputs, *[None] * (_NUM_OPTIONS + 3))


def _no_second_gradients(ctx, grads):
    raise RuntimeError(
        f"the {ctx.backend!r} backend of switching_delta_rule is differentiable once; "
        "for gradients of gradients use backend='reference' outside torch.compile"
    )


def _setup_no_context(ctx, inputs, output) -> None:
    ctx.backend = inputs[_NUM_INPUTS + _NUM_OPTIONS]


torch.library.register_autograd("swila::switching_delta_rule", _gradients, setup_context=_setup_context, lib=_library)
torch.library.register_autograd(
    "swila::switching_delta_rule_backward", _no_second_gradients, setup_context=_setup_no_context, lib=_library
)
