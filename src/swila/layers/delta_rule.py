"""The delta rule with its decays, by our operation with one regressor per head, or by flash-linear-attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from swila.layers import fla
from swila.ops import SwitchingState, switching_delta_rule, switching_delta_rule_step


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    state: Any = None,
    cu_seqlens: Tensor | None = None,
    return_state: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, SwitchingState | None]:
    """``W = W Diag(α) + β (v - W Diag(α) k) kᵀ``, read as ``W q``, for every head.

    Args:
        q: queries ``[B, T, H, K]``; there is no scale on them.
        k: keys ``[B, T, H, K]``.
        v: values ``[B, T, H, V]``.
        beta: learning rates in [0, 1], ``[B, T, H]``.
        log_decay: None, ``log α [B, T, H]`` (Gated DeltaNet) or ``[B, T, H, K]`` (KDA).
        state: the :class:`~swila.SwitchingState` to start from, with J = 1.
        cu_seqlens: bounds of packed sequences.
        return_state: whether to return the state after the last token.
        backend: of :func:`swila.switching_delta_rule`, or ``"fla"``.

    Returns:
        The output ``[B, T, H, V]``, and the state or None.
    """
    state = None if state is None else SwitchingState(*state)
    if backend == "fla":
        W = None if state is None else state.W.squeeze(2)
        output, W = fla.delta_rule(q, k, v, beta, log_decay, W, cu_seqlens, return_state)
        return output, None if W is None else SwitchingState(W.unsqueeze(2))
    beta = beta[..., None, None].expand(*beta.shape, 1, v.shape[-1])
    logits = beta.new_zeros(()).expand(beta.shape)
    if log_decay is not None:
        log_decay = log_decay[..., None, None, None] if log_decay.ndim == 3 else log_decay[..., None, None, :]
    if q.shape[1] == 1 and cu_seqlens is None:
        out = switching_delta_rule_step(
            q, k, v, beta, logits, logits, log_decay, initial_state=state, return_state=return_state, backend=backend
        )
    else:
        out = switching_delta_rule(
            q,
            k,
            v,
            beta,
            logits,
            logits,
            log_decay,
            initial_state=state,
            cu_seqlens=cu_seqlens,
            return_state=return_state,
            backend=backend,
        )
    return out.output, out.state
