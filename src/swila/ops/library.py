"""The operation as operators of ``torch.library``: schemas, tracing, gradients, and the way to a backend.

``swila::switching_delta_rule`` returns the results that the call has (see :func:`_present`) followed by what its
backward keeps. ``swila::switching_delta_rule_step_`` writes the state over the old one. Nothing here knows a backend;
the ``backend`` argument is looked up when the operator runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swila._version import __version__
from swila.ops.backends import Backend, choose_backend, get_backend, usable_backends
from swila.ops.call import DIFFERENTIABLE, STATE, Inputs, Options, Problem, Results, empty_results, needs_grad
from swila.ops.validation import check_call, check_values

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
_library.define(f"switching_delta_rule_step_({_MUTABLE}, {_OPTIONS}, str backend) -> Tensor")


def call(x: Inputs, options: Options, backend: str, step: bool = False) -> Results:
    """Run the registered operator: one opaque node under ``torch.compile``, differentiable once."""
    if backend == "auto":
        backend = _auto_step() if step else _auto()
    tensors = torch.ops.swila.switching_delta_rule(*x, *options, needs_grad(x), backend, __version__)
    return Results(**dict(zip(_present(x, options), tensors, strict=False)))


def step_in_place(x: Inputs, options: Options, backend: str) -> Results:
    """The step that writes the state over the old one, as one opaque node without gradients."""
    if backend == "auto":
        backend = _auto_step()
    output = torch.ops.swila.switching_delta_rule_step_(*x, *options, backend)
    return Results(output, x.W, x.r, x.rho)


def _auto() -> str:
    """``auto`` for a graph: bound to the backends that are usable where it is traced, as it may be cached."""
    return "auto:" + ",".join(usable_backends())


def _auto_step() -> str:
    """The same for a decoding step: those that have a way made for it."""
    return "auto:" + ",".join(name for name in usable_backends() if get_backend(name).step is not None)


# What torch.compiler.assume_constant_result sets; to call that would import torch._dynamo, which takes a second.
_auto._dynamo_marked_constant = _auto_step._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _present(x: Inputs, options: Options) -> list[str]:
    """Names of the results the call has, in order: every backend returns just these."""
    names = ["output"]
    if options.return_state:
        names += ["W"] + ["r"] * (x.key_gate is not None) + ["rho"] * (x.query_gate is not None)
    return names + (list(Results._fields[4:]) if options.routing_stats else [])


def _split(args: tuple) -> tuple[Inputs, Options, tuple]:
    end = _NUM_INPUTS + _NUM_OPTIONS
    return Inputs.of(args[:_NUM_INPUTS]), Options(*args[_NUM_INPUTS:end]), args[end:]


def _given(values: tuple) -> list[Tensor]:
    return [value for value in values if value is not None]


def _choose(x: Inputs, options: Options, save: bool, backend: str) -> Backend:
    return choose_backend(backend, Problem.of(x, options, needs_grad=save))


@torch.library.impl(_library, "switching_delta_rule", "CompositeExplicitAutograd")
def _forward(*args) -> list[Tensor]:
    x, options, (save, backend, _) = _split(args)
    check_values(x)
    results, saved = _choose(x, options, save, backend).forward(x, options, save)
    names = _present(x, options)
    assert names == [name for name, value in results._asdict().items() if value is not None]
    return [getattr(results, name).contiguous() for name in names] + saved  # strides as the tracer was told


@torch.library.impl(_library, "switching_delta_rule_backward", "CompositeExplicitAutograd")
def _backward(*args) -> list[Tensor]:
    x, options, (backend, saved, given) = _split(args)
    grads = Results(**{**dict.fromkeys(Results._fields), **dict(zip(_present(x, options), given, strict=True))})
    computed = _choose(x, options, True, backend).backward(x, options, saved, grads)
    return [computed[name].contiguous() for name in DIFFERENTIABLE if getattr(x, name) is not None]


@torch.library.impl(_library, "switching_delta_rule_step_", "CompositeExplicitAutograd")
def _step_in_place(*args) -> Tensor:
    x, options, (backend,) = _split(args)
    check_values(x)
    chosen = choose_backend(backend, Problem.of(x, options, needs_grad=False), step=True)
    return chosen.run_step_in_place(x, options).output


@torch.library.register_fake("swila::switching_delta_rule_step_", lib=_library)
def _step_in_place_fake(*args) -> Tensor:
    x, options, _ = _split(args)
    check_call(x, options)
    return empty_results(x, options).output


@torch.library.register_fake("swila::switching_delta_rule", lib=_library)
def _forward_fake(*args) -> list[Tensor]:
    x, options, (save, backend, _) = _split(args)
    check_call(x, options)
    chosen = _choose(x, options, save, backend)
    return _given(empty_results(x, options)) + (chosen.saved_like(x, options) if save else [])


@torch.library.register_fake("swila::switching_delta_rule_backward", lib=_library)
def _backward_fake(*args) -> list[Tensor]:
    x, _, _ = _split(args)
    return [t.new_empty(t.shape) for t in _given(x[:-1])]


def _setup_context(ctx, inputs, output) -> None:
    x, ctx.options, (_, ctx.backend, _) = _split(inputs)
    ctx.set_materialize_grads(False)  # else zeros come in for everything that is kept
    ctx.num_results = len(_present(x, ctx.options))
    ctx.given = [t is not None for t in x]
    ctx.save_for_backward(*_given(x), *output[ctx.num_results :])


def _gradients(ctx, grads):
    if all(grad is None for grad in grads[: ctx.num_results]):
        return (None,) * (_NUM_INPUTS + _NUM_OPTIONS + 3)
    tensors = iter(ctx.saved_tensors)
    x = Inputs.of(next(tensors) if given else None for given in ctx.given)
    computed = iter(
        torch.ops.swila.switching_delta_rule_backward(
            *x, *ctx.options, ctx.backend, list(tensors), grads[: ctx.num_results]
        )
    )
    of_inputs = [next(computed) if getattr(x, name) is not None else None for name in DIFFERENTIABLE]
    return (*of_inputs, *[None] * (1 + _NUM_OPTIONS + 3))


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
