"""Kernels of flash-linear-attention for the baselines; they need the package and a GPU."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor


def unusable() -> str | None:
    """Return why flash-linear-attention cannot be used on this machine, or None if it can."""
    if find_spec("fla") is None:
        return "flash-linear-attention is not installed (pip install flash-linear-attention)"
    if find_spec("triton") is None:
        return "triton is not installed"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    return None


def check(x: Tensor) -> None:
    """Raise ValueError unless its kernels support this tensor."""
    if reason := unusable():
        raise ValueError(f"backend 'fla' cannot be used here: {reason}")
    if not x.is_cuda:
        raise ValueError(f"backend 'fla' needs tensors on a GPU, got {x.device}")
    if x.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"backend 'fla' needs bfloat16 or float16 (its kernels support no other dtype), got {x.dtype}")


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    W: Tensor | None,
    cu_seqlens: Tensor | None,
    return_state: bool,
) -> tuple[Tensor, Tensor | None]:
    """Run the delta rule with a decay per head or per key dimension; see :func:`swila.layers.delta_rule.delta_rule`.

    The state ``W [N, H, V, K]`` is float32. Without gradients, short sequences use the recurrent kernels.
    """
    check(v)
    short = q.shape[1] <= 64 and not torch.is_grad_enabled()
    # states of flash-linear-attention are [N, H, K, V]
    common = {
        "scale": 1.0,
        "initial_state": None if W is None else W.float().mT.contiguous(),
        "output_final_state": return_state,
        "cu_seqlens": cu_seqlens,
    }
    beta = beta.to(v.dtype)
    if log_decay is None:
        from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule

        o, state = (fused_recurrent_delta_rule if short else chunk_delta_rule)(q, k, v, beta, **common)
    elif log_decay.ndim == 3:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

        kernel = fused_recurrent_gated_delta_rule if short else chunk_gated_delta_rule
        o, state = kernel(q=q, k=k, v=v, g=log_decay.float(), beta=beta, **common)
    else:
        from fla.ops.kda import chunk_kda, fused_recurrent_kda

        o, state = (fused_recurrent_kda if short else chunk_kda)(
            q=q, k=k, v=v, g=log_decay.float(), beta=beta, **common
        )
    return o, None if state is None else state.mT


def forgetting_attention(q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Return causal attention with forget gates ``log_forget [B, T, H]``; queries and keys are of the same tokens."""
    check(v)
    from fla.ops.forgetting_attn import parallel_forgetting_attn

    return parallel_forgetting_attn(q, k, v, log_forget.float(), cu_seqlens=cu_seqlens)
