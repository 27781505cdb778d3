"""The public operation: check the call, choose a backend, run it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual

from swila.ops import library
from swila.ops.call import PER_TOKEN, Inputs, Options, Results, needs_grad
from swila.ops.choice import serving_backend
from swila.ops.types import SwitchingOutput, SwitchingState
from swila.ops.validation import as_state, check_values


def switching_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    key_logits: Tensor,
    query_logits: Tensor,
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
    r"""A mixture of J online linear regressors per head: online EM over key-value pairs, read out by queries.

    For every token, with ``α = exp(log_decay)`` and state rows ``w_jd`` in ``R^K``::

        δ_jd = v_d - k · (α ⊙ w_jd)                                  prediction errors
        r_jd = softmax_j(log p_jd - δ_jd² / 2)                       responsibilities
        w_jd = α ⊙ w_jd + β_jd r_jd δ_jd k                           update
        o_d  = Σ_j ρ_jd (w_jd · q)                                   retrieval

    where the prior ``p`` and the mix ``ρ`` are ``softmax_j`` of the logits, or with a gate ``g`` (temporal) a blend
    ``(1 - g) previous + g softmax_j(logits)`` with the last responsibilities and the last mix. There is no scale on
    ``q``. With J = 1 this is DeltaNet, with a scalar decay Gated DeltaNet, with a decay per key dim KDA.

    Args:
        q: queries ``[B, T, H, K]``.
        k: keys ``[B, T, H, K]``.
        v: values ``[B, T, H, V]``.
        beta: learning rates in [0, 1], ``[B, T, H, J, V]``.
        key_logits: log-prior of the responsibilities up to a constant over j, ``[B, T, H, J, V]``; -inf rules a mixture
            out. +inf gives NaN, or with ``backend="cuda"`` in some forms that mixture alone.
        query_logits: the same for the mix at retrieval, ``[B, T, H, J, V]``.
        log_decay: ``log α <= 0``; ``[B, T, H, J, 1, K]`` per key dim, ``[B, T, H, J, V, 1]`` per output dim or
            ``[B, T, H, J, 1, 1]`` per head (and mixture).
        key_gate: temporal gate of the prior in [0, 1], ``[B, T, H, V]``.
        query_gate: temporal gate of the mix in [0, 1], ``[B, T, H, V]``.
        decay_order: ``"pre"`` takes prediction errors at the decayed state, ``"post"`` at the state before it.
        normalize: False leaves out the denominator of the responsibilities.
        initial_state: the state to start from; by default ``W = 0`` and ``r = ρ = 1/J``.
        cu_seqlens: bounds of packed sequences, int ``[N + 1]``, from 0 to T; then B must be 1 and every sequence
            starts from its own state.
        return_state: whether to return the state after the last token of each sequence.
        routing_stats: whether to return usage and entropy of the responsibilities and of the mix.
        backend: ``"auto"`` (the fastest that serves the call), or ``"cuda"``, ``"numba"``, ``"blocked"`` or
            ``"reference"``. A backend asked for by name never falls back.

    Returns:
        ``SwitchingOutput(output [B, T, H, V], state, stats)``. Output, state and statistics are differentiable in
        every floating input and the initial state.

    The state and all recurrence arithmetic are float32 (float64 for float64 inputs); the output has the dtype of
    ``v``. Inputs that break the contract raise a ValueError; see also :func:`swila.set_value_checks`. Second
    derivatives, forward-mode derivatives and ``torch.func`` transforms need ``backend="reference"``.
    """
    x = Inputs(
        q, k, v, beta, key_logits, query_logits, log_decay, key_gate, query_gate, *as_state(initial_state), cu_seqlens
    )
    results = _run(x, Options(decay_order, normalize, return_state, routing_stats), backend)
    return SwitchingOutput(results.output, results.state, results.stats)


def switching_delta_rule_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    key_logits: Tensor,
    query_logits: Tensor,
    log_decay: Tensor | None = None,
    key_gate: Tensor | None = None,
    query_gate: Tensor | None = None,
    decay_order: str = "pre",
    normalize: bool = True,
    initial_state: SwitchingState | None = None,
    return_state: bool = True,
    backend: str = "auto",
    inplace: bool = False,
) -> SwitchingOutput:
    """One token of :func:`switching_delta_rule`, for decoding: pass each call the state the last one returned.

    Arguments as there, for one token: either with their time axis of length 1 (``q [B, 1, H, K]``, ...) or without
    it (``q [B, H, K]``, ``beta [B, H, J, V]``, ``log_decay [B, H, J, 1, K]``, ...); the output follows ``q``. The state
    comes back unless ``return_state=False``. With ``inplace`` it is written over ``initial_state`` and comes back as
    the same tensors: no second state in memory, and addresses that a captured CUDA graph can rely on. It has no
    gradients.
    """
    tokens = [q, k, v, beta, key_logits, query_logits, log_decay, key_gate, query_gate]
    has_time = not isinstance(q, Tensor) or q.ndim != 3
    if not has_time:
        for name, t in zip(PER_TOKEN, tokens, strict=True):
            rank = {"log_decay": 5, "beta": 4, "key_logits": 4, "query_logits": 4}.get(name, 3)
            if isinstance(t, Tensor) and t.ndim != rank:
                shape = list(t.shape)
                raise ValueError(f"{name} must have no time axis, as q has none: rank {rank}, got shape {shape}")
        tokens = [t.unsqueeze(1) if isinstance(t, Tensor) else t for t in tokens]
    elif isinstance(q, Tensor) and q.ndim == 4 and q.shape[1] != 1:
        raise ValueError(f"q must be one token, [B, 1, H, K] or [B, H, K], got shape {list(q.shape)}")
    x = Inputs.of([*tokens, *as_state(initial_state)])
    if inplace:
        if x.W is None or not return_state:
            raise ValueError(
                "inplace must be False without a state to write to: it needs initial_state and return_state=True"
            )
        if needs_grad(x):
            raise ValueError("inplace must be False where gradients are needed, got an input that requires them")
    results = _run(x, Options(decay_order, normalize, return_state), backend, step=True, inplace=inplace)
    output = results.output if has_time else results.output.squeeze(1)
    return SwitchingOutput(output, results.state)


def _run(x: Inputs, options: Options, backend: str, step: bool = False, inplace: bool = False) -> Results:
    if torch.compiler.is_compiling():
        if inplace:
            return library.traced_step_in_place(x, options, backend)
        return library.traced(x, options, backend, step)
    save = needs_grad(x)
    chosen = serving_backend(x, options, backend, save, step)
    if inplace:
        check_values(x)
        return chosen.run_step_in_place(x, options)
    forward = chosen.differentiable
    if step and chosen.step is not None and (chosen.step_has_gradients or not save):
        forward = chosen.step
    if forward is not None:
        check_values(x)
        return forward(x, options)
    if _in_forward_mode() and any(t is not None and unpack_dual(t).tangent is not None for t in x):
        raise ValueError(
            f"backend {chosen.name!r} has no forward-mode derivative, got an input with a tangent: "
            "use backend='reference'"
        )
    return library.eager(x, options, chosen.name, save)


def _in_forward_mode() -> bool:
    """Whether a level of forward-mode derivatives is open; without one no tensor has a tangent."""
    return getattr(forward_ad, "_current_level", 0) >= 0
