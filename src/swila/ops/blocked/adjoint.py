r"""The adjoint of a chunk: the substitution in reverse, the rest matrix products.

With ``dS_t = ρ_t do_t`` and ``dW'`` from the right, in the notation of ``algorithm.py``,

.. math::

    e_t &= (\Gamma_{Ct} k_t) \cdot dW' + \sum_{s\ge t} P_{st}\, dS_s + \sum_{s>t} A_{st}\, du_s \\
    r_j dr_j &= r_j \beta_j \delta_j e_j + m_j \\
    dz_j &= r_j dr_j - r_j \sum_i r_i dr_i \\
    du_j &= \delta_j dz_j - e_j \beta_j r_j \\
    dW &= \Gamma_C dW' + \sum_t du_t \otimes \Gamma_t k_t + dS_t \otimes \Gamma_t q_t

where e is the adjoint of c, ``z = log p - δ²/2``, and m comes from the statistics and, if temporal, from the token
after: ``m_{t-1} = (1 - g) r_{t-1} / p ⊙ dz_t``.

The adjoint of r travels as that of ``log r``: its share ``(1 - g) r / p`` is at most one, however small a prior gets.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swila.ops.blocked.algorithm import Chunk, Solved, State, columns, rows
from swila.ops.blocked.decay import Decayed


def adjoint(
    x: Chunk, s: Solved, start: State, do: Tensor, rdr: Tensor | None, drho: Tensor | None, end: State
) -> tuple[dict[str, Tensor], State, Tensor]:
    """Gradients of the chunk's inputs, by name, and of the state at its start.

    Args:
        x: the chunk's inputs.
        s: what the forward found in it.
        start: the state at its start.
        do: adjoint of the output, ``[N, C, 1, V]``.
        rdr: what the statistics add to ``r ⊙ dr``, ``[N, C, J, V]``.
        drho: what they add to the adjoint of the mix, ``[N, C, J, V]``.
        end: adjoint of the state at the chunk's end, with that of ``log r`` in the place of r.

    Returns:
        The gradients, the adjoint of the state at the start in the same form as ``end``, and that of r itself.
    """
    keys_u, keys_S, rows_u, rows_S = x.decays
    W, dW = start.W, end.W
    dS = x.group(s.rho * do)
    E = rows_S.to_end(keys_S.to_end(x.k) @ dW.mT) + rows_S.write(s.P, dS)

    r_last, pi = torch.cat([start.r.unsqueeze(1), s.r[:, :-1]], 1), x.log_pi.exp()
    if x.g_k is None:
        e, dz, du, dlog_r = substitute_adjoint(x, s, E, rdr, end.r, None)
        dlog_pi, dr, gates = dz, torch.zeros_like(start.r), {}
    else:
        p = torch.lerp(r_last, pi, x.g_k).clamp_min_(torch.finfo(pi.dtype).tiny)
        e, dz, du, dlog_r = substitute_adjoint(x, s, E, rdr, end.r, (1 - x.g_k) * r_last / p)
        dlog_pi, dr = x.g_k * pi / p * dz, finite(dz[:, 0] * ((1 - x.g_k[:, 0]) / p[:, 0]))
        gates = {"key_gate": finite(dz * ((pi - r_last) / p)).sum(2)}
    through_rho = do * x.ungroup(s.S)
    dpi_q, drho_start, query_gate = mix_adjoint(
        x, s, start.rho, through_rho if drho is None else drho + through_rho, end.rho
    )

    dA, dP = rows_u.gram(du, s.c), rows_S.gram(dS, s.c, own=True)
    du_0, dS_0 = rows_u.from_start(du), rows_S.from_start(dS)
    dk_0, dq_0, dk_end = du_0 @ W, dS_0 @ W, rows_S.to_end(s.c) @ dW
    dk = keys_u.read(dA, x.k) + keys_u.write(dA, x.k) + keys_u.from_start(dk_0)
    dk = dk + keys_S.write(dP, x.q) + keys_S.to_end(dk_end)
    dq = keys_S.read(dP, x.k) + keys_S.from_start(dq_0)
    dW_start = rows_S.across(keys_S.across(dW, -1), -2)
    dW_start = dW_start + du_0.mT @ keys_u.from_start(x.k) + dS_0.mT @ keys_S.from_start(x.q)

    decay = {}
    if x.log_decay is not None and x.by_key:
        decay = {"log_decay": decay_adjoint(x, (dA, dP), (x.k, x.q), x.k, (dk_0, dq_0), dk_end, W, dW)}
    elif x.log_decay is not None:
        reads = x.k @ W.mT, x.q @ W.mT
        decay = {"log_decay": decay_adjoint(x, (s.A, s.P), (du, dS), s.c, reads, x.k @ dW.mT, W, dW)}
    grads = {
        "q": dq.sum(1),
        "k": dk.sum(1),
        "v": -x.ungroup(du).sum(2),
        "beta": e * s.r * s.delta,
        "key_logits": dlog_pi - pi * dlog_pi.sum(2, keepdim=True),
        "query_logits": x.pi_q * (dpi_q - (x.pi_q * dpi_q).sum(2, keepdim=True)),
    }
    return grads | decay | gates | query_gate, State(dW_start, dlog_r, drho_start), dr


def substitute_adjoint(
    x: Chunk, s: Solved, E: Tensor, rdr: Tensor | None, m: Tensor, stay: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The substitution in reverse: e, dz, du of every token, and m for the token before the chunk.

    ``E`` is the part of e known beforehand; ``stay = (1 - g) r_{t-1} / p`` where temporal.
    """
    N, C, J, V = x.beta.shape
    read, du_columns = columns(E, J)  # du_s, decayed back to the token at hand
    es, dzs, dus = (torch.empty_like(x.beta) for _ in range(3))
    E_t, A_t = rows(E), rows(s.A.mT.contiguous())
    tokens = [a.unbind(1) for a in (s.delta, s.r, x.beta * s.r, es, dzs, dus)]
    for t in reversed(range(C)):
        delta, r, beta_r, e, dz, du = (a[t] for a in tokens)
        e.copy_(torch.baddbmm(E_t[t], A_t[t], read).view(N, J, V))
        e_beta_r = e * beta_r
        rdr_t = e_beta_r * delta
        if rdr is not None:
            rdr_t += rdr[:, t]
        if stay is not None:
            rdr_t += m
        if x.normalize:
            torch.addcmul(rdr_t, r, rdr_t.sum(1, keepdim=True), value=-1, out=dz)
        else:
            dz.copy_(rdr_t)
        torch.addcmul(e_beta_r.neg_(), delta, dz, out=du)
        if stay is not None:
            m = stay[:, t] * dz
        du_columns[t].copy_(du)
        if x.row_decay:
            read[:, t if x.decay_order == "pre" else t + 1 :] *= x.row_decay[t]
    return es, dzs, x.group(dus), m


def mix_adjoint(
    x: Chunk, s: Solved, rho: Tensor, drho: Tensor, drho_end: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Adjoints of the query prior, of the mix before the chunk, and of the gate where there is one."""
    if x.g_q is None:
        return drho, drho_end, {}
    drho = drho.clone()
    for t in reversed(range(drho.shape[1])):
        drho_end = (1 - x.g_q[:, t]) * drho[:, t].add_(drho_end)
    rho_last = torch.cat([rho.unsqueeze(1), s.rho[:, :-1]], 1)
    return x.g_q * drho, drho_end, {"query_gate": (drho * (x.pi_q - rho_last)).sum(2)}


def decay_adjoint(
    x: Chunk, pairs: tuple, readers: tuple, writer: Tensor, reads: tuple, writes: Tensor, W: Tensor, dW: Tensor
) -> Tensor:
    """Gradient of the log-decays: they lie between writers and readers, before readers, after writers, and across all.

    One formula for decays by key dim and by row, with (k, q) and (du, dS), k and c, (dA, dP) and (A, P) exchanged.
    ``reads`` is what the readers meet at the chunk's start, ``writes`` what the writers meet at its end.
    """
    decays, dim = [decay for decay in x.decays if isinstance(decay, Decayed)], -1 if x.by_key else -2
    grad = decays[1].end_gradient(writer, writes) + decays[1].across_gradient(W, dW, dim)
    for decay, pair, reader, read in zip(decays, pairs, readers, reads, strict=True):
        grad = grad + decay.pair_gradient(pair, reader, writer) + decay.start_gradient(reader, read)
    return grad


def finite(x: Tensor) -> Tensor:
    """Bound a derivative in a probability, which grows as its inverse."""
    steepest = torch.finfo(x.dtype).max ** 0.75
    return x.clamp(-steepest, steepest)
