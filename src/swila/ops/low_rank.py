"""The operation on low-rank learning rates and logits, which are never kept in full.

``β = sigmoid(b B_βᵀ)`` and the logits ``k B_kᵀ`` and ``q B_qᵀ`` are ``[B, T, H, J, V]``, by far the largest inputs of
the operation, and follow from activations ``b, k, q [B, T, R]`` of a small rank R. The operators expand them, run a
backend, and keep the activations alone; the backward expands them again.

``swila::switching_delta_rule_low_rank`` returns what ``swila::switching_delta_rule`` returns: the results of the call
and what the backend keeps. One ``autograd.Function`` around the operators serves eager mode and ``torch.compile``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swila._version import __version__
from swila.ops.api import switching_delta_rule
from swila.ops.call import DIFFERENTIABLE, Inputs, Options, Results, empty_results, without_autocast
from swila.ops.choice import serving_backend
from swila.ops.fused.expand import expand
from swila.ops.fused.gradients import call_gradients, once_differentiable
from swila.ops.library import as_results, auto_name, backend_of, present
from swila.ops.types import SwitchingOutput, SwitchingState
from swila.ops.validation import as_state, check_values

EXPANDED = ("beta", "key_logits", "query_logits")


class Factors(NamedTuple):
    """One of the two factors of each low-rank input.

    Attributes:
        beta: Of the logits of the learning rates: activations ``[B, T, R]``, or a matrix ``[H J V, R]``.
        key: Of the logits of the prior for writing.
        query: Of the logits of the mix at retrieval.
    """

    beta: Tensor
    key: Tensor
    query: Tensor


class _Tensors(NamedTuple):
    """All tensor arguments, in the order of the operators: those of :class:`Inputs`, with two factors for three."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta_low: Tensor
    key_low: Tensor
    query_low: Tensor
    beta_up: Tensor
    key_up: Tensor
    query_up: Tensor
    log_decay: Tensor | None = None
    key_gate: Tensor | None = None
    query_gate: Tensor | None = None
    W: Tensor | None = None
    r: Tensor | None = None
    rho: Tensor | None = None
    cu_seqlens: Tensor | None = None

    @property
    def factors(self) -> list[tuple[Tensor, Tensor]]:
        """The pairs of activations and matrix, in the order of :data:`EXPANDED`."""
        return list(zip(self[3:6], self[6:9], strict=True))

    def with_full(self, full: Sequence[Tensor]) -> Inputs:
        """Return the inputs of the operation, with ``beta`` and the logits as given, ``[B, T, H J V]``."""
        H, V = self.v.shape[2:]
        return Inputs.of([self.q, self.k, self.v, *(t.unflatten(-1, (H, -1, V)) for t in full), *self[9:]])

    def expanded(self) -> Inputs:
        """Return the inputs of the operation."""
        with torch.no_grad(), without_autocast(self.q.device):
            return self.with_full([expand(*pair, sigmoid=i == 0) for i, pair in enumerate(self.factors)])

    def described(self) -> Inputs:
        """Return inputs of the same shapes and dtypes without memory for what would be expanded."""
        return self.with_full([low.new_empty(()).expand(*low.shape[:-1], len(up)) for low, up in self.factors])


_OPTIONAL = set(_Tensors._field_defaults)
_SCHEMA = ", ".join(f"Tensor{'?' if name in _OPTIONAL else ''} {name}" for name in _Tensors._fields)
_SCHEMA += ", str decay_order, bool normalize, bool return_state, bool routing_stats, str backend"
_NUM_TENSORS, _NUM_OPTIONS = len(_Tensors._fields), len(Options._fields)

_library = torch.library.Library("swila", "FRAGMENT")
_library.define(f"switching_delta_rule_low_rank({_SCHEMA}, str version) -> Tensor[]")
_library.define(f"switching_delta_rule_low_rank_backward({_SCHEMA}, Tensor[] saved, Tensor?[] grads) -> Tensor[]")
_forward_op = torch.ops.swila.switching_delta_rule_low_rank.default
_backward_op = torch.ops.swila.switching_delta_rule_low_rank_backward.default


def switching_delta_rule_low_rank(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    low: Factors,
    up: Factors,
    log_decay: Tensor | None = None,
    key_gate: Tensor | None = None,
    query_gate: Tensor | None = None,
    decay_order: str = "pre",
    normalize: bool = True,
    initial_state: SwitchingState | None = None,
    cu_seqlens: Tensor | None = None,
    return_state: bool = False,
    routing_stats: bool = False,
    backend: str = "auto",
) -> SwitchingOutput:
    """Return :func:`swila.switching_delta_rule` with ``beta = sigmoid(low upᵀ)`` and both logits ``low upᵀ``.

    What is kept for the backward does not include ``beta`` and the logits.

    Args:
        q: Queries, ``[B, T, H, K]``.
        k: Keys, ``[B, T, H, K]``.
        v: Values, ``[B, T, H, V]``.
        low: Activations ``[B, T, R]``; the ranks may differ.
        up: Matrices ``[H J V, R]``.
        log_decay: See :func:`swila.switching_delta_rule`, as for all that follow.
        key_gate: Temporal gate of the prior.
        query_gate: Temporal gate of the mix.
        decay_order: ``"pre"`` or ``"post"``.
        normalize: Whether to normalise the responsibilities.
        initial_state: State to start from.
        cu_seqlens: Bounds of packed sequences.
        return_state: Whether to return the final state.
        routing_stats: Whether to return routing statistics.
        backend: Name of a backend, or ``"auto"``.
    """
    x = _Tensors(q, k, v, *low, *up, log_decay, key_gate, query_gate, *as_state(initial_state), cu_seqlens)
    options = Options(decay_order, normalize, return_state, routing_stats)
    if torch.compiler.is_compiling():
        chosen = auto_name() if backend == "auto" else backend
        differentiable = False
    else:
        found = serving_backend(x.described(), options, backend, True)
        chosen, differentiable = found.name, found.differentiable is not None
    if differentiable or not (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in x[:-1])):
        full = x.with_full([expand(*pair, sigmoid=i == 0) for i, pair in enumerate(x.factors)])
        return switching_delta_rule(*full[:9], decay_order, normalize, initial_state, cu_seqlens, return_state,
                                    routing_stats, backend)  # fmt: skip
    tensors = _LowRankCall.apply(*options, chosen, *x)
    results = as_results(x.described(), options, tensors)
    return SwitchingOutput(results.output, results.state, results.stats)


class _LowRankCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        options, backend, x = Options(*args[:_NUM_OPTIONS]), args[_NUM_OPTIONS], _Tensors(*args[_NUM_OPTIONS + 1 :])
        returned = _forward_op(*x, *options, backend, __version__)
        num_results = len(present(x.described(), options))
        ctx.options, ctx.backend = options, backend
        ctx.save_for_backward(*x, *returned[num_results:])
        if not torch.compiler.is_compiling():  # there a gradient that is not needed comes as zeros
            ctx.set_materialize_grads(False)
        return tuple(returned[:num_results])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in grads):
            return (None,) * (_NUM_OPTIONS + 1 + _NUM_TENSORS)
        saved = ctx.saved_tensors  # read once: activation checkpointing forbids a second time
        x = _Tensors(*saved[:_NUM_TENSORS])
        kept = list(saved[_NUM_TENSORS:])
        computed = iter(call_gradients(_backward_op, *x, *ctx.options, ctx.backend, kept, list(grads)))
        found = [None if t is None else next(computed) for t in x[:-1]]
        return (*[None] * (_NUM_OPTIONS + 1), *found, None)


def _split(args: tuple) -> tuple[_Tensors, Options, tuple]:
    end = _NUM_TENSORS + _NUM_OPTIONS
    return _Tensors(*args[:_NUM_TENSORS]), Options(*args[_NUM_TENSORS:end]), args[end:]


@torch.library.impl(_library, "switching_delta_rule_low_rank", "CompositeExplicitAutograd")
def _forward(*args: Any) -> list[Tensor]:
    tensors, options, (backend, _) = _split(args)
    x = tensors.expanded()
    check_values(x)
    results, saved = backend_of(x, options, backend, True).forward(x, options, True)
    return [t.contiguous() for t in results if t is not None] + saved


@torch.library.impl(_library, "switching_delta_rule_low_rank_backward", "CompositeExplicitAutograd")
def _backward(*args: Any) -> list[Tensor]:
    tensors, options, (backend, saved, given) = _split(args)
    x = tensors.expanded()
    grads = Results(**{"output": None, **dict(zip(present(x, options), given, strict=True))})
    chosen = backend_of(x, options, backend, True)
    computed = (chosen.backward_of_logits or chosen.backward)(x, options, saved, grads)
    with torch.no_grad(), without_autocast(x.q.device):
        lows, ups = [], []
        for name, (low, up) in zip(EXPANDED, tensors.factors, strict=True):
            full = computed.pop(name).flatten(2)
            if name == "beta" and chosen.backward_of_logits is None:
                beta = x.beta.flatten(2)  # expanded above, and read no more
                full = torch.ops.aten.sigmoid_backward.grad_input(full.to(beta.dtype), beta, grad_input=beta)
            full = full.to(low.dtype)
            lows.append(full @ up.to(low.dtype))
            ups.append((full.flatten(0, 1).T @ low.reshape(-1, low.shape[-1])).to(up.dtype))
    rest = [computed[name] for name in DIFFERENTIABLE if name in computed]
    return [t.contiguous() for t in (*rest[:3], *lows, *ups, *rest[3:])]


@torch.library.register_fake("swila::switching_delta_rule_low_rank", lib=_library)
def _forward_fake(*args: Any) -> list[Tensor]:
    tensors, options, (backend, _) = _split(args)
    x = tensors.described()
    chosen = serving_backend(x, options, backend, True)
    return [t for t in empty_results(x, options) if t is not None] + chosen.saved_like(x, options)


@torch.library.register_fake("swila::switching_delta_rule_low_rank_backward", lib=_library)
def _backward_fake(*args: Any) -> list[Tensor]:
    tensors, _, _ = _split(args)
    return [t.new_empty(t.shape) for t in tensors[:-1] if t is not None]


once_differentiable(
    _library,
    "swila::switching_delta_rule_low_rank_backward",
    "switching_delta_rule_low_rank is differentiable once; for gradients of gradients use backend='reference' outside "
    "torch.compile",
)
