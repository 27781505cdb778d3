"""The delta rule with decay: our operation with one regressor per head, or flash-linear-attention's kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swila.layers import fla
from swila.layers.context import CallContext, per_row
from swila.layers.recurrence import run_recurrence
from swila.ops import SwitchingState

WHOLE = CallContext()


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    state: Any = None,
    context: CallContext = WHOLE,
    backend: str = "auto",
) -> tuple[Tensor, SwitchingState | None]:
    """Run ``W = W Diag(α) + β (v - W Diag(α) k) kᵀ`` with output ``W q`` for every head.

    Args:
        q: Queries ``[B, T, H, K]``; they are not scaled.
        k: Keys ``[B, T, H, K]``.
        v: Values ``[B, T, H, V]``.
        beta: Learning rates in [0, 1], ``[B, T, H]``.
        log_decay: None, ``log α [B, T, H]`` (Gated DeltaNet) or ``[B, T, H, K]`` (KDA).
        state: Initial :class:`~swila.SwitchingState` with J = 1, or None.
        context: Context of the call.
        backend: Backend of :func:`swila.switching_delta_rule`, or ``"fla"``.

    Returns:
        The output ``[B, T, H, V]``, and the final state or None.
    """
    if backend == "fla":
        W = None if state is None else SwitchingState(*state).W.squeeze(2)
        output, new = fla.delta_rule(q, k, v, beta, log_decay, W, context.cu_seqlens, context.return_state)
        if context.alive is not None and W is not None and new is not None:
            new = W.copy_(torch.where(per_row(context.alive, W), new, W))
        return output, None if new is None else SwitchingState(new.unsqueeze(2))
    beta = beta[..., None, None].expand(*beta.shape, 1, v.shape[-1])
    logits = beta.new_zeros(()).expand(beta.shape)
    operands = {"q": q, "k": k, "v": v, "beta": beta, "key_logits": logits, "query_logits": logits}
    if log_decay is not None:
        per_head = log_decay.ndim == 3
        operands["log_decay"] = log_decay[..., None, None, None] if per_head else log_decay[..., None, None, :]
    out = run_recurrence(operands, state, context, backend=backend)
    return out.output, out.state
