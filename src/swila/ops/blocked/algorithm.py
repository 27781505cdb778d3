r"""The exact blocked algorithm: matrix products, and a sequential substitution of J numbers per output dim.

The state enters the nonlinearity through ``u_t = w · k_t`` alone, and every update is along ``k_t``. In a chunk of C
tokens that starts at the state ``W``, with ``Γ_t`` the decay since the start and ``Γ_ts`` that from ``s`` to ``t``,

.. math::

    u_t &= (\Gamma_t k_t) \cdot W + \sum_{s<t} A_{ts} c_s      & A_{ts} &= k_t \cdot \Gamma_{ts} k_s  \\
    c_t &= \beta_t\, r_t(\delta_t)\, \delta_t                  & \delta_t &= v_t - u_t                \\
    S_t &= (\Gamma_t q_t) \cdot W + \sum_{s\le t} P_{ts} c_s   & P_{ts} &= q_t \cdot \Gamma_{ts} k_s  \\
    W' &= \Gamma_C W + \sum_s c_s \otimes \Gamma_{Cs} k_s      & o_t &= \sum_j \rho_{tj} S_{tj}

All terms with K dims are matrix products; the rest is a substitution over C steps (:func:`substitute`). The results
equal those of the token loop up to rounding. The adjoint, a substitution in reverse, is in ``adjoint.py``. A short
version of this file is ``minimal.py``.

Shapes: N sequences times heads, C tokens, J mixtures, V output dims, K key dims. Per-token values are
``[N, C, J, V]``, in matrix products ``[N, G, C, F V]`` with ``J = G F``. The F mixtures of a group share its matrices A
and P: with a decay per key dim each mixture is a group (G = J), otherwise all mixtures are one (G = 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from swila.ops.blocked.decay import UNDECAYED, Decayed, Undecayed


@dataclass(frozen=True)
class Chunk:
    """Inputs of one chunk, in the compute dtype."""

    q: Tensor  # [N, 1, C, K]
    k: Tensor  # [N, 1, C, K]
    v: Tensor  # [N, C, 1, V]
    beta: Tensor  # [N, C, J, V]
    log_pi: Tensor  # [N, C, J, V], log-prior of the keys
    pi_q: Tensor  # [N, C, J, V], prior of the queries
    g_k: Tensor | None  # [N, C, 1, V]
    g_q: Tensor | None  # [N, C, 1, V]
    log_decay: Tensor | None  # [N, J, C, K] by key dim, or [N, 1, C, J V] by row of the state
    by_key: bool
    decay_order: str
    normalize: bool

    @cached_property
    def decays(self) -> tuple[Undecayed, Undecayed, Undecayed, Undecayed]:
        """Decays of the key dims for u_t and for S_t, then decays of the state's rows for u_t and for S_t."""
        if self.log_decay is None:
            return UNDECAYED, UNDECAYED, UNDECAYED, UNDECAYED
        S = Decayed(self.log_decay, inclusive=True)
        u = S if self.decay_order == "pre" else Decayed(self.log_decay, inclusive=False)
        return (u, S, UNDECAYED, UNDECAYED) if self.by_key else (UNDECAYED, UNDECAYED, u, S)

    @cached_property
    def row_decay(self) -> tuple[Tensor, ...]:
        """Factor of each token on the state's rows, ``[N, 1, J V]``; empty without such a decay."""
        if self.log_decay is None or self.by_key:
            return ()
        return self.log_decay.squeeze(1).exp().unsqueeze(2).unbind(1)

    def group(self, x: Tensor) -> Tensor:
        """``[N, C, J, V]`` to ``[N, G, C, F V]``."""
        return x.transpose(1, 2) if self.by_key else x.flatten(2).unsqueeze(1)

    def ungroup(self, x: Tensor) -> Tensor:
        """``[N, G, C, F V]`` to ``[N, C, J, V]``."""
        return x.transpose(1, 2) if self.by_key else x.squeeze(1).view_as(self.beta)


class State(NamedTuple):
    """State at the start or end of a chunk, or its adjoint."""

    W: Tensor  # [N, G, F V, K]
    r: Tensor  # [N, J, V]
    rho: Tensor  # [N, J, V]


class Solved(NamedTuple):
    """Intermediate results of a chunk."""

    A: Tensor  # [N, G, C, C]
    P: Tensor  # [N, G, C, C]
    delta: Tensor  # [N, C, J, V]
    r: Tensor  # [N, C, J, V]
    c: Tensor  # [N, G, C, F V]
    S: Tensor  # [N, G, C, F V]
    rho: Tensor  # [N, C, J, V]


def solve(x: Chunk, start: State) -> Solved:
    """All intermediate results of a chunk, from the state at its start."""
    keys_u, keys_S, rows_u, rows_S = x.decays
    A = keys_u.gram(x.k, x.k)
    P = keys_S.gram(x.q, x.k, own=True)
    U = rows_u.from_start(keys_u.from_start(x.k) @ start.W.mT)
    delta, r, c = substitute(x, U, A, start.r)
    S = rows_S.from_start(keys_S.from_start(x.q) @ start.W.mT) + rows_S.read(P, c)
    return Solved(A, P, delta, r, c, S, mix(x, start.rho))


def output(x: Chunk, s: Solved) -> Tensor:
    """``o [N, C, V]``."""
    return (s.rho * x.ungroup(s.S)).sum(2)


def advance(x: Chunk, s: Solved, start: State) -> State:
    """The state at the chunk's end."""
    _, keys, _, rows = x.decays
    W = add_outer(rows.across(keys.across(start.W, -1), -2), rows.to_end(s.c), keys.to_end(x.k))
    return State(W, s.r[:, -1], s.rho[:, -1])


def substitute(x: Chunk, U: Tensor, A: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``δ_t = v_t - u_t``, ``r_t`` and ``c_t`` for t = 0 ... C - 1: the sequential part."""
    N, _, J, V = x.beta.shape
    tiny = torch.finfo(U.dtype).tiny  # replaces priors that have underflowed
    known = x.group(x.v.expand_as(x.beta)) - U  # δ_t without the writes of this chunk
    deltas, rs, written = torch.empty_like(x.beta), torch.empty_like(x.beta), torch.zeros_like(U)
    past = written.flatten(0, 1)  # c_s, decayed to the current token
    columns = [by_token(written, J), *(a.unbind(1) for a in (deltas, rs, x.beta, x.log_pi))]
    for t, (known_t, A_t, c, delta_t, r_t, beta, log_p) in enumerate(
        zip(tokens_of(known), tokens_of(A), *columns, strict=True)
    ):
        if x.row_decay and x.decay_order == "pre":
            past[:, :t] *= x.row_decay[t]
        delta = torch.baddbmm(known_t, A_t, past, alpha=-1).view(N, J, V)
        if x.g_k is not None:
            log_p = torch.lerp(r, log_p.exp(), x.g_k[:, t]).clamp_min_(tiny).log_()
        z = torch.addcmul(log_p, delta, delta, value=-0.5)
        r = z.softmax(1) if x.normalize else z.exp_()
        if x.row_decay and x.decay_order == "post":
            past[:, :t] *= x.row_decay[t]
        torch.mul(r * delta, beta, out=c)
        delta_t.copy_(delta)
        r_t.copy_(r)
    return deltas, rs, x.group(x.beta * rs * deltas) if x.row_decay else written


def mix(x: Chunk, rho: Tensor) -> Tensor:
    """Query mix of every token: its prior, or with a gate the blend with the previous mix."""
    if x.g_q is None:
        return x.pi_q
    mixes = torch.empty_like(x.pi_q)
    for pi, g, out in zip(x.pi_q.unbind(1), x.g_q.unbind(1), mixes.unbind(1), strict=True):
        rho = torch.lerp(rho, pi, g, out=out)
    return mixes


def add_outer(W: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``W + Σ_t x_t ⊗ y_t``."""
    return torch.baddbmm(W.flatten(0, 1), x.flatten(0, 1).mT, y.expand(*x.shape[:2], -1, -1).flatten(0, 1)).view_as(W)


def tokens_of(x: Tensor) -> tuple[Tensor, ...]:
    """Views of the C tokens of ``x [N, G, C, D]`` as operands ``[N G, 1, D]`` of ``torch.baddbmm``."""
    return x.flatten(0, 1).unsqueeze(2).unbind(1)


def by_token(x: Tensor, J: int) -> tuple[Tensor, ...]:
    """Views of the C tokens of ``x [N, G, C, F V]`` as ``[N, J, V]``."""
    N, G, C, _ = x.shape
    return x.view(N, G, C, J // G, -1).transpose(2, 3).view(N, J, C, -1).unbind(2)
