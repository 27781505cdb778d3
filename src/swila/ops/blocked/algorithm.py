r"""The switching delta rule, exactly, with matrix products: only J numbers per output dimension are left in sequence.

The state enters the nonlinearity through ``u_t = w · k_t`` alone, and every update is along ``k_t``. In a chunk of C tokens
that starts at the state ``W``, with ``Γ_t`` the decay since the start and ``Γ_ts`` that from ``s`` to ``t``,

.. math::

    u_t &= (\Gamma_t k_t) \cdot W + \sum_{s<t} A_{ts} c_s      & A_{ts} &= k_t \cdot \Gamma_{ts} k_s  \\
    c_t &= \beta_t\, r_t(\delta_t)\, \delta_t                  & \delta_t &= v_t - u_t                \\
    S_t &= (\Gamma_t q_t) \cdot W + \sum_{s\le t} P_{ts} c_s   & P_{ts} &= q_t \cdot \Gamma_{ts} k_s  \\
    W' &= \Gamma_C W + \sum_s c_s \otimes \Gamma_{Cs} k_s      & o_t &= \sum_j \rho_{tj} S_{tj}

so everything of size K is a matrix product, and the rest is a substitution (:func:`substitute`). The adjoint is the same
substitution in reverse (:func:`substitute_adjoint`). Equal to the token loop up to rounding.

Shapes: N sequences times heads, C tokens, J mixtures, V output dims, K key dims. Per token ``[N, C, J, V]``; in matrix
products the same as ``[N, G, C, F V]`` with ``J = G F``: the G groups have decays per key dim of their own (G = J with such
a decay, else 1), and the F mixtures of a group share the matrices A and P.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from swila.ops.blocked.decay import UNDECAYED, Decayed, Undecayed


class Chunk(NamedTuple):
    """The inputs of one chunk in full precision."""

    q: Tensor  # [N, 1, C, K]
    k: Tensor  # [N, 1, C, K]
    v: Tensor  # [N, C, 1, V]
    beta: Tensor  # [N, C, J, V]
    log_pi: Tensor  # [N, C, J, V], the key prior
    pi_q: Tensor  # [N, C, J, V], the query prior
    g_k: Tensor | None  # [N, C, 1, V]
    g_q: Tensor | None  # [N, C, 1, V]
    log_decay: Tensor | None  # [N, J, C, K] by key dim or [N, 1, C, J V] by row of the state
    by_key: bool
    decay_order: str
    normalize: bool

    def decays(self) -> tuple[Undecayed, Undecayed, Undecayed, Undecayed]:
        """Decay of the key dims as u_t sees it and as S_t sees it, then of the state's rows likewise."""
        if self.log_decay is None:
            return (UNDECAYED,) * 4
        after = Decayed(self.log_decay, inclusive=True)
        before = after if self.decay_order == "pre" else Decayed(self.log_decay, inclusive=False)
        return (before, after, UNDECAYED, UNDECAYED) if self.by_key else (UNDECAYED, UNDECAYED, before, after)

    def row_decay(self) -> tuple[Tensor, ...] | None:
        """The factors by which each token shrinks the rows, ``[N, 1, J V]``."""
        if self.log_decay is None or self.by_key:
            return None
        return self.log_decay.squeeze(1).exp().unsqueeze(2).unbind(1)

    def group(self, x: Tensor) -> Tensor:
        """``[N, C, J, V]`` to ``[N, G, C, F V]``."""
        return x.transpose(1, 2) if self.by_key else x.flatten(2).unsqueeze(1)

    def ungroup(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2) if self.by_key else x.squeeze(1).view_as(self.beta)


class State(NamedTuple):
    """State at a chunk's bound, or its adjoint: ``W [N, G, F V, K]``, ``r, rho [N, J, V]``."""

    W: Tensor
    r: Tensor
    rho: Tensor


class Solved(NamedTuple):
    """What the forward finds in a chunk: ``A, P [N, G, C, C]``, ``c, S [N, G, C, F V]``, the rest ``[N, C, J, V]``."""

    A: Tensor
    P: Tensor
    delta: Tensor
    r: Tensor
    c: Tensor
    S: Tensor
    rho: Tensor


def solve(x: Chunk, start: State) -> Solved:
    """Everything in a chunk from the state at its start."""
    keys_u, keys_S, rows_u, rows_S = x.decays()
    A = keys_u.gram(x.k, x.k)
    P = keys_S.gram(x.q, x.k, own=True)
    U = rows_u.from_start(keys_u.from_start(x.k) @ start.W.mT)
    delta, r, c = substitute(x, U, A, start.r)
    S = rows_S.from_start(keys_S.from_start(x.q) @ start.W.mT) + rows_S.read(P, c)
    return Solved(A, P, delta, r, c, S, mix(x, start.rho))


def substitute(x: Chunk, U: Tensor, A: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sequential part: ``u_t``, and from it ``δ_t``, ``r_t`` and ``c_t``, for t = 0 ... C - 1."""
    N, C, J, V = x.beta.shape
    alpha, tiny = x.row_decay(), torch.finfo(U.dtype).tiny
    written, c = _stack_of_columns(U, J)  # c_s, decayed to the token at hand
    deltas, rs = torch.empty_like(x.beta), torch.empty_like(x.beta)
    steps = zip(
        _by_token(U), _by_token(A), c, *(a.unbind(1) for a in (x.v, x.beta, x.log_pi, deltas, rs)), strict=True
    )
    for t, (U_t, A_t, c_t, v, beta, log_p, delta, r_t) in enumerate(steps):
        if alpha and x.decay_order == "pre":
            written[:, :t] *= alpha[t]
        torch.sub(v, torch.baddbmm(U_t, A_t, written).view(N, J, V), out=delta)
        if x.g_k is not None:
            log_p = torch.lerp(r, log_p.exp(), x.g_k[:, t]).clamp_min_(tiny).log_()
        z = torch.addcmul(log_p, delta, delta, value=-0.5)
        r = torch.softmax(z, 1, out=r_t) if x.normalize else torch.exp(z, out=r_t)
        if alpha and x.decay_order == "post":
            written[:, :t] *= alpha[t]
        torch.mul(r * delta, beta, out=c_t)
    return deltas, rs, x.group(x.beta * rs * deltas)


def mix(x: Chunk, rho: Tensor) -> Tensor:
    """The query mix of every token: its prior, blended over time where there is a gate."""
    if x.g_q is None:
        return x.pi_q
    mixes = torch.empty_like(x.pi_q)
    for pi, g, out in zip(x.pi_q.unbind(1), x.g_q.unbind(1), mixes.unbind(1), strict=True):
        rho = torch.lerp(rho, pi, g, out=out)
    return mixes


def advance(x: Chunk, s: Solved, start: State) -> State:
    """The state at the chunk's end."""
    _, keys, _, rows = x.decays()
    W = rows.across(keys.across(start.W, -1), -2) + rows.to_end(s.c).mT @ keys.to_end(x.k)
    return State(W, s.r[:, -1], s.rho[:, -1])


def adjoint(
    x: Chunk, s: Solved, start: State, do: Tensor, rdr: Tensor | None, drho: Tensor | None, end: State
) -> tuple[dict[str, Tensor | None], State, Tensor | None]:
    """Gradients of the chunk's inputs, by name, and of the state at its start.

    ``do [N, C, 1, V]`` is the adjoint of the output, ``rdr`` and ``drho`` what the statistics add to ``r ⊙ dr`` and to dρ,
    ``end`` the adjoint of the state at the chunk's end. The adjoint of r travels as that of ``log r``, which stays bounded
    however small a prior gets; the last result is the plain one, of the first token's ``r``.
    """
    keys_u, keys_S, rows_u, rows_S = x.decays()
    W, dW = start.W, end.W
    dS = x.group(s.rho * do)
    k_end = keys_S.to_end(x.k)
    E = rows_S.to_end(k_end @ dW.mT) + rows_S.write(s.P, dS)

    pi = x.log_pi.exp()
    if x.g_k is None:
        e, dz, du, dlog_r = substitute_adjoint(x, s, E, rdr, None, None)
        dlog_pi, dg_k, dr = dz, None, None
    else:
        r_last = torch.cat([start.r.unsqueeze(1), s.r[:, :-1]], 1)
        p = torch.lerp(r_last, pi, x.g_k).clamp_min_(torch.finfo(pi.dtype).tiny)
        e, dz, du, dlog_r = substitute_adjoint(x, s, E, rdr, end.r, (1 - x.g_k) * r_last / p)
        dlog_pi, steepest = x.g_k * pi / p * dz, torch.finfo(p.dtype).max ** 0.75
        dg_k = (dz * ((pi - r_last) / p)).clamp_(-steepest, steepest).sum(2)
        dr = (dz[:, 0] * ((1 - x.g_k[:, 0]) / p[:, 0])).clamp_(-steepest, steepest)
    from_output = do * x.ungroup(s.S)
    drho = from_output if drho is None else drho + from_output
    dpi_q, dg_q, drho_start = mix_adjoint(x, s, start.rho, drho, end.rho)

    dA, dP = rows_u.gram(du, s.c), rows_S.gram(dS, s.c, own=True)
    du_0, dS_0, c_end = rows_u.from_start(du), rows_S.from_start(dS), rows_S.to_end(s.c)
    k_0, q_0 = keys_u.from_start(x.k), keys_S.from_start(x.q)
    dk_0, dq_0, dk_end = du_0 @ W, dS_0 @ W, c_end @ dW
    dq = keys_S.read(dP, x.k) + keys_S.from_start(dq_0)
    dk = keys_u.read(dA, x.k) + keys_u.write(dA, x.k) + keys_S.write(dP, x.q)
    dk = dk + keys_u.from_start(dk_0) + keys_S.to_end(dk_end)
    dW_start = rows_S.across(keys_S.across(dW, -1), -2) + du_0.mT @ k_0 + dS_0.mT @ q_0

    dlog_decay = None
    if x.log_decay is not None and x.by_key:
        dlog_decay = decay_adjoint(keys_u, keys_S, (dA, dP), (x.k, x.q), x.k, (dk_0, dq_0), dk_end)
        dlog_decay += keys_S.across_gradient(W, dW, -1)
    elif x.log_decay is not None:
        dlog_decay = decay_adjoint(
            rows_u, rows_S, (s.A, s.P), (du, dS), s.c, (x.k @ W.mT, x.q @ W.mT), x.k @ dW.mT
        )
        dlog_decay += rows_S.across_gradient(W, dW, -2)
    grads = {
        "q": dq.sum(1),
        "k": dk.sum(1),
        "v": -x.ungroup(du).sum(2),
        "beta": e * s.r * s.delta,
        "key_logits": dlog_pi - pi * dlog_pi.sum(2, keepdim=True),
        "query_logits": x.pi_q * (dpi_q - (x.pi_q * dpi_q).sum(2, keepdim=True)),
        "log_decay": dlog_decay,
        "key_gate": dg_k,
        "query_gate": dg_q,
    }
    return grads, State(dW_start, dlog_r, drho_start), dr


def substitute_adjoint(
    x: Chunk, s: Solved, E: Tensor, rdr: Tensor | None, dlog_r: Tensor | None, stay: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The substitution in reverse: adjoints e of ``c``, dz of ``z = log p - δ²/2``, du of ``u``, and that of ``log r_0``.

    ``E`` is the part of e known beforehand, ``dlog_r`` what the token after the chunk sends back, and
    ``stay = (1 - g) r_{t-1} / p <= 1`` the share of a token's ``dz`` that goes on to the token before it.
    """
    N, C, J, V = x.beta.shape
    alpha = x.row_decay()
    read, du = _stack_of_columns(E, J)  # du_s, decayed back to the token at hand
    es, dzs, dus = (torch.empty_like(x.beta) for _ in range(3))
    E_t, A_t = _by_token(E), _by_token(s.A.mT.contiguous())
    tokens = [a.unbind(1) for a in (s.delta, s.r, x.beta * s.r, es, dzs, dus)]
    for t in reversed(range(C)):
        delta, r, beta_r, e, dz, du_t = (a[t] for a in tokens)
        e.copy_(torch.baddbmm(E_t[t], A_t[t], read).view(N, J, V))
        dc = e * beta_r
        dz_raw = dc * delta
        if rdr is not None:
            dz_raw += rdr[:, t]
        if stay is not None:
            dz_raw += dlog_r
        if x.normalize:
            torch.addcmul(dz_raw, r, dz_raw.sum(1, keepdim=True), value=-1, out=dz)
        else:
            dz.copy_(dz_raw)
        torch.addcmul(dc.neg_(), delta, dz, out=du_t)
        if stay is not None:
            dlog_r = stay[:, t] * dz
        du[t].copy_(du_t)
        if alpha:
            read[:, t if x.decay_order == "pre" else t + 1 :] *= alpha[t]
    return es, dzs, x.group(dus), dlog_r


def mix_adjoint(
    x: Chunk, s: Solved, rho: Tensor, drho: Tensor, drho_end: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Adjoints of the query prior, of its gate and of the mix before the chunk."""
    if x.g_q is None:
        return drho, None, drho_end
    for t in reversed(range(drho.shape[1])):
        drho_end = (1 - x.g_q[:, t]) * drho[:, t].add_(drho_end)
    rho_last = torch.cat([rho.unsqueeze(1), s.rho[:, :-1]], 1)
    return x.g_q * drho, (drho * (x.pi_q - rho_last)).sum(2), drho_end


def decay_adjoint(
    decay_u: Decayed, decay_S: Decayed, M: tuple, readers: tuple, writer: Tensor, at_start: tuple, at_end: Tensor
) -> Tensor:
    """Gradient of the log-decays, which sit between readers and writers, the start and readers, writers and the end."""
    grad = decay_S.end_gradient(writer, at_end)
    for decay, matrix, reader, first in zip((decay_u, decay_S), M, readers, at_start, strict=True):
        grad = grad + decay.pair_gradient(matrix, reader, writer) + decay.start_gradient(reader, first)
    return grad


def _by_token(x: Tensor) -> tuple[Tensor, ...]:
    """``[N, G, C, D]`` as C operands ``[N G, 1, D]`` of ``torch.baddbmm``."""
    return x.flatten(0, 1).unsqueeze(2).unbind(1)


def _stack_of_columns(like: Tensor, J: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Zeros ``[N G, C, F V]`` and views of its C columns as ``[N, J, V]``."""
    N, G, C, FV = like.shape
    stack = like.new_zeros(N, G, C, FV)
    return stack.flatten(0, 1), stack.view(N, G, C, J // G, -1).transpose(2, 3).view(N, J, C, -1).unbind(2)
