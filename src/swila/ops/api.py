"""The public operation: checks a call, chooses a backend and runs it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.forward_ad import unpack_dual

from swila.ops import library
from swila.ops.call import PER_TOKEN, Inputs, Options, Results, needs_grad
from swila.ops.choice import serving_backend
from swila.ops.types import SwitchingOutput, SwitchingState
from swila.ops.validation import as_state, check_alive, check_values


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
    r"""Outputs of a mixture of J online linear regressors per head, updated by online EM on key-value pairs.

    For every token, with ``α = exp(log_decay)`` and state rows ``w_jd`` in ``R^K``::

        δ_jd = v_d - k · (α ⊙ w_jd)                                  prediction errors
        r_jd = softmax_j(log p_jd - δ_jd² / 2)                       responsibilities
        w_jd = α ⊙ w_jd + β_jd r_jd δ_jd k                           update
        o_d  = Σ_j ρ_jd (w_jd · q)                                   retrieval

    The prior ``p`` and the mix ``ρ`` are ``softmax_j`` of the logits. With a temporal gate ``g`` they are the blends
    ``(1 - g) previous + g softmax_j(logits)`` with the responsibilities and the mix of the previous token. ``q`` is not
    scaled. With J = 1 this is DeltaNet; with J = 1 and a decay per head Gated DeltaNet; with J = 1 and a decay per key
    dim KDA.

    Args:
        q: Queries, ``[B, T, H, K]``.
        k: Keys, ``[B, T, H, K]``.
        v: Values, ``[B, T, H, V]``.
        beta: Learning rates in [0, 1], ``[B, T, H, J, V]``.
        key_logits: Logits of the prior over mixtures for writing, ``[B, T, H, J, V]``. A logit of -inf excludes a
            mixture. A logit of +inf gives NaN; with ``backend="cuda"`` some variants select that mixture instead.
        query_logits: Logits of the mix at retrieval, ``[B, T, H, J, V]``.
        log_decay: Log-decay ``log α <= 0``: ``[B, T, H, J, 1, K]`` (per key dim), ``[B, T, H, J, V, 1]`` (per output
            dim) or ``[B, T, H, J, 1, 1]`` (per head and mixture).
        key_gate: Temporal gate of the prior in [0, 1], ``[B, T, H, V]``.
        query_gate: Temporal gate of the mix in [0, 1], ``[B, T, H, V]``.
        decay_order: ``"pre"`` computes prediction errors with the decayed state, ``"post"`` with the one before decay.
        normalize: Whether to normalise the responsibilities over the mixtures.
        initial_state: State to start from. Default: ``W = 0`` and ``r = ρ = 1/J``.
        cu_seqlens: Bounds of packed sequences from 0 to T, int ``[N + 1]``. B must then be 1, and each sequence has its
            own initial and final state.
        return_state: Whether to return the state after the last token of each sequence.
        routing_stats: Whether to return usage and entropy of the responsibilities and of the mix.
        backend: ``"auto"`` (the fastest that serves the call), ``"cuda"``, ``"numba"``, ``"blocked"`` or
            ``"reference"``. A backend requested by name never falls back to another one.

    Returns:
        ``SwitchingOutput(output [B, T, H, V], state, stats)``. Output, state and statistics are differentiable with
        respect to every floating input and the initial state.

    The state and all arithmetic of the recurrence are float32 (float64 for float64 inputs); the output has the dtype of
    ``v``. A call that does not meet these requirements raises a ValueError; see also :func:`swila.set_value_checks`.
    Second derivatives, forward-mode derivatives and ``torch.func`` transforms need ``backend="reference"``.
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
    alive: Tensor | None = None,
) -> SwitchingOutput:
    """One decode step of :func:`switching_delta_rule`: one token, from the state that the previous call returned.

    The arguments are those of :func:`switching_delta_rule` for a single token, either with a time axis of length 1
    (``q [B, 1, H, K]``, ...) or without one (``q [B, H, K]``, ``beta [B, H, J, V]``, ``log_decay [B, H, J, 1, K]``,
    ...). The output has a time axis if ``q`` has one.

    Args:
        q: Queries, ``[B, 1, H, K]`` or ``[B, H, K]``.
        k: Keys, likewise.
        v: Values, likewise.
        beta: Learning rates.
        key_logits: Logits of the prior over mixtures for writing.
        query_logits: Logits of the mix at retrieval.
        log_decay: Log-decay, or None.
        key_gate: Temporal gate of the prior, or None.
        query_gate: Temporal gate of the mix, or None.
        decay_order: ``"pre"`` or ``"post"``.
        normalize: Whether to normalise the responsibilities over the mixtures.
        initial_state: State to start from.
        return_state: Whether to return the new state.
        backend: See :func:`switching_delta_rule`.
        inplace: Whether to write the new state into ``initial_state`` and return those tensors. This needs no second
            state in memory, and a captured CUDA graph finds the state at the same address. It has no gradients.
        alive: Rows to update with ``inplace``, bool ``[B]``; None for all. The state of the other rows stays
            bit-identical, and their output is undefined.
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
    check_alive(alive, x, inplace)
    results = _run(x, Options(decay_order, normalize, return_state), backend, step=True, inplace=inplace, alive=alive)
    output = results.output if has_time else results.output.squeeze(1)
    return SwitchingOutput(output, results.state)


def _run(
    x: Inputs, options: Options, backend: str, step: bool = False, inplace: bool = False, alive: Tensor | None = None
) -> Results:
    if torch.compiler.is_compiling():
        if inplace:
            return library.traced_step_in_place(x, options, backend, alive)
        return library.traced(x, options, backend, step)
    save = needs_grad(x)
    chosen = serving_backend(x, options, backend, save, step)
    if inplace:
        check_values(x)
        return chosen.run_step_in_place(x, options, alive)
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
