r"""The adjoint of a chunk: a substitution in reverse, and matrix products.

With ``dS_t = ρ_t do_t`` and ``dW'``, the adjoint of the state at the chunk's end, in the notation of ``algorithm.py``,

.. math::

    e_t &= (\Gamma_{Ct} k_t) \cdot dW' + \sum_{s\ge t} P_{st}\, dS_s + \sum_{s>t} A_{st}\, du_s \\
    r_j dr_j &= r_j \beta_j \delta_j e_j + m_j \\
    dz_j &= r_j dr_j - r_j \sum_i r_i dr_i \\
    du_j &= \delta_j dz_j - e_j \beta_j r_j \\
    dW &= \Gamma_C dW' + \sum_t du_t \otimes \Gamma_t k_t + dS_t \otimes \Gamma_t q_t

where e is the adjoint of c, ``z = log p - δ²/2``, and m is the contribution of the statistics and, with a key gate, of
the next token: ``m_{t-1} = (1 - g) r_{t-1} / p ⊙ dz_t``.

The adjoint of r is carried as that of ``log r``: the factor ``(1 - g) r / p`` is at most one for any prior.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swila.ops.blocked.algorithm import Chunk, Solved, State, add_outer, by_token, tokens_of
from swila.ops.blocked.decay import Decayed


def adjoint(
    x: Chunk, s: Solved, start: State, do: Tensor, rdr: Tensor | None, drho: Tensor | None, end: State
) -> tuple[dict[str, Tensor], State, Tensor]:
    """Gradients of a chunk's inputs, by name, and of the state at its start.

    Args:
        x: Inputs of the chunk.
        s: Its intermediate results.
        start: State at its start.
        do: Adjoint of the output, ``[N, C, 1, V]``.
        rdr: Contribution of the statistics to ``r ⊙ dr``, ``[N, C, J, V]``.
        drho: Contribution of the statistics to the adjoint of the mix, ``[N, C, J, V]``.
        end: Adjoint of the state at the chunk's end, with the adjoint of ``log r`` as its r.

    Returns:
        The gradients, the adjoint of the state at the start in the form of ``end``, and the adjoint of its r.
    """
    keys_u, keys_S, rows_u, rows_S = x.decays
    W, dW = start.W, end.W
    dS = x.group(s.rho * do)
    E = rows_S.write(s.P, dS) + rows_S.to_end(keys_S.to_end(x.k) @ dW.mT)

    dr, gates = torch.zeros_like(start.r), {}
    if x.g_k is None:
        e, dz, du, dlog_r = substitute_adjoint(x, s, E, rdr, end.r, None)
        dkey_logits = dz if x.normalize else dz - x.log_pi.exp() * dz.sum(2, keepdim=True)
    else:
        r_last, pi = torch.cat([start.r.unsqueeze(1), s.r[:, :-1]], 1), x.log_pi.exp()
        p = torch.lerp(r_last, pi, x.g_k).clamp_min_(torch.finfo(pi.dtype).tiny)
        e, dz, du, dlog_r = substitute_adjoint(x, s, E, rdr, end.r, (1 - x.g_k) * r_last / p)
        dlog_pi = x.g_k * pi / p * dz
        dkey_logits = dlog_pi - pi * dlog_pi.sum(2, keepdim=True)
        gates = {"key_gate": finite(dz * ((pi - r_last) / p)).sum(2)}
        dr = finite(dz[:, 0] * ((1 - x.g_k[:, 0]) / p[:, 0]))
    through_rho = do * x.ungroup(s.S)
    dpi_q, drho_start, query_gate = mix_adjoint(
        x, s, start.rho, through_rho if drho is None else drho + through_rho, end.rho
    )

    dA, dP = rows_u.gram(du, s.c), rows_S.gram(dS, s.c, own=True)
    du_0, dS_0 = rows_u.from_start(du), rows_S.from_start(dS)
    dk_0, dq_0, dk_end = du_0 @ W, dS_0 @ W, rows_S.to_end(s.c) @ dW
    decay: dict[str, Tensor] = {}
    if isinstance(keys_u, Decayed) and isinstance(keys_S, Decayed):
        dk_u, dk_written, decay_u = keys_u.gram_adjoint(dA, x.k, x.k)
        dq, dk_read, decay_S = keys_S.gram_adjoint(dP, x.q, x.k)
        decay_u += keys_u.start_gradient(x.k, dk_0)
        decay_S += keys_S.start_gradient(x.q, dq_0) + keys_S.end_gradient(x.k, dk_end)
        decay["log_decay"] = decay_u + decay_S + keys_S.across_gradient(W, dW, -1)
    else:
        dk_u, dk_written = keys_u.read(dA, x.k), keys_u.write(dA, x.k)
        dq, dk_read = keys_S.read(dP, x.k), keys_S.write(dP, x.q)
    if isinstance(rows_u, Decayed) and isinstance(rows_S, Decayed):
        decay_u, decay_S = rows_u.gram_adjoint(s.A, du, s.c)[2], rows_S.gram_adjoint(s.P, dS, s.c)[2]
        decay_u += rows_u.start_gradient(x.k @ W.mT, du)
        decay_S += rows_S.start_gradient(x.q @ W.mT, dS) + rows_S.end_gradient(s.c, x.k @ dW.mT)
        decay["log_decay"] = decay_u + decay_S + rows_S.across_gradient(W, dW, -2)
    dk = dk_u + dk_written + dk_read + keys_u.from_start(dk_0) + keys_S.to_end(dk_end)
    dq = dq + keys_S.from_start(dq_0)
    dW_start = add_outer(
        rows_S.across(keys_S.across(dW, -1), -2),
        torch.cat([du_0, dS_0], 2),
        torch.cat([keys_u.from_start(x.k), keys_S.from_start(x.q)], 2),
    )
    grads = {
        "q": dq.sum(1),
        "k": dk.sum(1),
        "v": -x.ungroup(du).sum(2),
        "beta": e * s.r * s.delta,
        "key_logits": dkey_logits,
        "query_logits": x.pi_q * (dpi_q - (x.pi_q * dpi_q).sum(2, keepdim=True)),
    }
    return grads | decay | gates | query_gate, State(dW_start, dlog_r, drho_start), dr


def substitute_adjoint(
    x: Chunk, s: Solved, E: Tensor, rdr: Tensor | None, m: Tensor, stay: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """e, dz and du of every token, and m for the token before the chunk: the substitution in reverse.

    ``E`` is e without the contributions of this chunk; ``stay`` is ``(1 - g) r_{t-1} / p`` with a key gate, else None.
    """
    N, C, J, V = x.beta.shape
    es, dzs, dus = torch.empty_like(x.beta), torch.empty_like(x.beta), torch.zeros_like(E)
    read = torch.zeros_like(E) if x.row_decay else dus
    future = read.flatten(0, 1)  # du_s, decayed back to the current token
    E_rows, A_rows = tokens_of(E), tokens_of(s.A.mT.contiguous())
    columns = [by_token(dus, J), by_token(read, J), *(a.unbind(1) for a in (s.delta, s.r, x.beta * s.r, es, dzs))]
    for t in reversed(range(C)):
        du, du_read, delta, r, beta_r, e_t, dz_t = (a[t] for a in columns)
        e = torch.baddbmm(E_rows[t], A_rows[t], future).view(N, J, V)
        e_beta_r = e * beta_r
        dz = e_beta_r * delta
        if rdr is not None:
            dz += rdr[:, t]
        if stay is not None:
            dz += m
        if x.normalize:
            dz = torch.addcmul(dz, r, dz.sum(1, keepdim=True), value=-1)
        torch.addcmul(e_beta_r.neg_(), delta, dz, out=du)
        e_t.copy_(e)
        dz_t.copy_(dz)
        if stay is not None:
            m = stay[:, t] * dz
        if x.row_decay:
            du_read.copy_(du)
            future[:, t if x.decay_order == "pre" else t + 1 :] *= x.row_decay[t]
    return es, dzs, dus, m


def mix_adjoint(
    x: Chunk, s: Solved, rho: Tensor, drho: Tensor, drho_end: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Adjoints of the query prior, of the mix before the chunk, and of the query gate if there is one."""
    if x.g_q is None:
        return drho, drho_end, {}
    drho = drho.clone()
    for t in reversed(range(drho.shape[1])):
        drho_end = (1 - x.g_q[:, t]) * drho[:, t].add_(drho_end)
    rho_last = torch.cat([rho.unsqueeze(1), s.rho[:, :-1]], 1)
    return x.g_q * drho, drho_end, {"query_gate": (drho * (x.pi_q - rho_last)).sum(2)}


def finite(x: Tensor) -> Tensor:
    """Clamp a derivative with respect to a probability, which grows as the inverse of the probability."""
    steepest = torch.finfo(x.dtype).max ** 0.75
    return x.clamp(-steepest, steepest)
