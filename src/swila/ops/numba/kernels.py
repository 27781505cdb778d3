r"""The recurrence and its adjoint, token by token, compiled; one call processes several (sequence, head) pairs.

The equations are those of ``reference.py``; their adjoint is derived by hand. With ``dW`` the adjoint of the state
after token t,

.. math::

    dW &\mathrel{+}= dS \otimes q, \quad e = dW k, \quad dz_j = r_j dr_j - r_j \sum_i r_i dr_i, \quad
    du = \delta\, dz - e \beta r, \\
    d\tilde W &= dW + du \otimes k, \quad d\log\alpha = \textstyle\sum d\tilde W \tilde W, \quad
    dW_{t-1} = \alpha\, d\tilde W

(post-decay: u is read before the decay). The adjoint of r travels as that of ``log r``, as in ``blocked/adjoint.py``.

The state lies as ``W [J, K, V]``, so that every inner loop runs along V: no sums across lanes. Arrays of tokens are
``[B T, H, ...]``. Constants are made from typed ones (``one = half + half``): a literal would make float32 arithmetic
float64. ``kind`` is the granularity of the decay: 0 none, 1 by key dim, 2 by output dim, 3 by head.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from swila.ops.numba.functions import exp, log

options = {"nogil": True, "cache": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}
# Inlined: a helper that stays a function is linked to the copy that was loaded first. That depends on whether the
# kernels were compiled or read from the cache, and the last bits of the results would depend on it too.
inlined = {**options, "forceinline": True}


@njit(**inlined)
def at_least(x, bound):
    """The larger of two numbers, NaN if x is NaN; the opposite comparison would drop NaN."""
    return bound if x < bound else x


@njit(**inlined)
def softmax(x, out, one):
    """Softmax over the first of two dims."""
    J, V = x.shape
    most, total = np.empty_like(x[0]), np.empty_like(x[0])
    for d in range(V):
        most[d] = x[0, d]
        total[d] = one - one
    for j in range(1, J):
        for d in range(V):
            most[d] = x[j, d] if x[j, d] > most[d] else most[d]
    for j in range(J):
        for d in range(V):
            out[j, d] = exp(x[j, d] - most[d])
            total[d] += out[j, d]
    for j in range(J):
        for d in range(V):
            out[j, d] /= total[d]


@njit(**inlined)
def factors(log_decay, kind, alpha_k, alpha_v, one):
    """The decay of a token as a product ``alpha_k [J, K] * alpha_v [J, V]``."""
    J, K = alpha_k.shape
    V = alpha_v.shape[1]
    for j in range(J):
        for i in range(K):
            alpha_k[j, i] = exp(log_decay[j, 0, i]) if kind == 1 else one
        for d in range(V):
            alpha_v[j, d] = exp(log_decay[j, d if kind == 2 else 0, 0]) if kind > 1 else one


@njit(**inlined)
def token(W, q, k, v, beta, pi, g, temporal, alpha_k, alpha_v, kind, post, normalize, r, delta, c, S, half, tiny):
    """One update of ``W`` and ``r`` in place; ``pi`` is what :func:`key_prior` gives."""
    J, _, V = W.shape
    zero, one = tiny - tiny, half + half
    z = np.empty_like(r)
    for j in range(J):
        for d in range(V):
            delta[j, d] = v[d]
        if kind and not post:
            shrink(W[j], alpha_k[j], alpha_v[j])
        subtract(W[j], k, delta[j])
        if kind and post:
            shrink(W[j], alpha_k[j], alpha_v[j])
        for d in range(V):
            if temporal:
                p = (one - g[d]) * r[j, d] + g[d] * pi[j, d]
                z[j, d] = log(at_least(p, tiny)) - half * delta[j, d] * delta[j, d]
            else:
                z[j, d] = pi[j, d] - half * delta[j, d] * delta[j, d]
    if normalize:
        softmax(z, r, one)
    else:
        for j in range(J):
            for d in range(V):
                r[j, d] = exp(z[j, d])
    for j in range(J):
        for d in range(V):
            c[j, d] = beta[j, d] * r[j, d] * delta[j, d]
            S[j, d] = zero
        write_and_read(W[j], c[j], k, q, S[j])


@njit(**inlined)
def shrink(W, alpha_k, alpha_v):
    """``W *= alpha_k ⊗ alpha_v``."""
    K, V = W.shape
    for i in range(K):
        for d in range(V):
            W[i, d] *= alpha_k[i] * alpha_v[d]


@njit(**inlined)
def subtract(W, k, u):
    """``u -= k W``, four rows at a time, which reduces loads and stores of u."""
    K, V = W.shape
    for i in range(0, K - 3, 4):
        a, b, c, e = k[i], k[i + 1], k[i + 2], k[i + 3]
        for d in range(V):
            u[d] -= (a * W[i, d] + b * W[i + 1, d]) + (c * W[i + 2, d] + e * W[i + 3, d])
    for i in range(K - K % 4, K):
        for d in range(V):
            u[d] -= k[i] * W[i, d]


@njit(**inlined)
def write_and_read(W, c, k, q, S):
    """``W += k ⊗ c`` and ``S += q W`` in one pass."""
    K, V = W.shape
    for i in range(0, K - 1, 2):
        k0, k1, q0, q1 = k[i], k[i + 1], q[i], q[i + 1]
        for d in range(V):
            w0, w1 = W[i, d] + c[d] * k0, W[i + 1, d] + c[d] * k1
            W[i, d] = w0
            W[i + 1, d] = w1
            S[d] += q0 * w0 + q1 * w1
    for i in range(K - K % 2, K):
        for d in range(V):
            W[i, d] += c[d] * k[i]
            S[d] += q[i] * W[i, d]


@njit(**inlined)
def key_prior(logits, temporal, normalize, out, one, tiny):
    """Prior for :func:`token`: probabilities if temporal, log-probabilities if unnormalised, else the logits."""
    J, V = logits.shape
    if temporal or not normalize:
        softmax(logits, out, one)
    if not temporal:
        for j in range(J):
            for d in range(V):
                out[j, d] = logits[j, d] if normalize else log(at_least(out[j, d], tiny))


@njit(**inlined)
def mix(pi, g, temporal, rho, one):
    """The query mix of a token, in place."""
    J, V = rho.shape
    for j in range(J):
        for d in range(V):
            rho[j, d] = (one - g[d]) * rho[j, d] + g[d] * pi[j, d] if temporal else pi[j, d]


@njit(**inlined)
def add_routing(p, usage, entropy, tiny):
    """Add a token's probabilities to the statistics."""
    J, V = p.shape
    for j in range(J):
        for d in range(V):
            usage[j, d] += p[j, d]
            entropy[d] -= p[j, d] * log(at_least(p[j, d], tiny))


@njit(**options)
def forward(
    units,
    bounds,
    kept_rows,
    C,
    x,
    gates,
    log_decay,
    kind,
    flags,
    state,
    out,
    kept,
    keep,
    routing,
    with_stats,
    half,
    tiny,
):
    """Process the tokens of some units ``sequence * H + head``; updates ``state`` in place."""
    q, k, v, beta, key_logits, query_logits = x
    (g_k, g_q), (W, r, rho), (kept_W, kept_r, kept_rho) = gates, state, kept
    post, normalize, temporal_k, temporal_q = flags
    key_usage, key_entropy, query_usage, query_entropy = routing
    _, H, J, V = beta.shape
    K, one = q.shape[2], half + half
    scratch = np.empty((6, J, V), beta.dtype)
    pi, pi_q, delta, c, S, alpha_v = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5]
    alpha_k = np.empty((J, K), beta.dtype)
    for unit in units:
        n, h = unit // H, unit % H
        for t in range(bounds[n], bounds[n + 1]):
            done = t - bounds[n]
            if keep and done > 0 and done % C == 0:
                row = kept_rows[n] + done // C - 1
                kept_W[row, h, ...] = W[n, h]
                kept_r[row, h, ...] = r[n, h]
                kept_rho[row, h, ...] = rho[n, h]
            key_prior(key_logits[t, h], temporal_k, normalize, pi, one, tiny)
            if kind:
                factors(log_decay[t, h], kind, alpha_k, alpha_v, one)
            token(
                W[n, h], q[t, h], k[t, h], v[t, h], beta[t, h], pi, g_k[t % g_k.shape[0], h], temporal_k,
                alpha_k, alpha_v, kind, post, normalize, r[n, h], delta, c, S, half, tiny,
            )  # fmt: skip
            softmax(query_logits[t, h], pi_q, one)
            mix(pi_q, g_q[t % g_q.shape[0], h], temporal_q, rho[n, h], one)
            for d in range(V):
                total = half - half
                for j in range(J):
                    total += rho[n, h, j, d] * S[j, d]
                out[t, h, d] = total
            if with_stats:
                add_routing(r[n, h], key_usage[unit], key_entropy[unit], tiny)
                add_routing(rho[n, h], query_usage[unit], query_entropy[unit], tiny)


@njit(**options)
def backward(
    units, bounds, kept_rows, C, x, gates, log_decay, kind, flags, state, kept, do, dstate, dx, dgates, dlog_decay,
    drouting, weight, with_stats, half, tiny, steepest,
):  # fmt: skip
    """Process the chunks of some units in reverse order, recomputing each from the state at its start.

    ``dstate`` is updated in place, from the adjoint of the final state to that of the initial state.
    """
    q, k, v, beta, key_logits, query_logits = x
    dq, dk, dv, dbeta, dkey_logits, dquery_logits = dx
    (g_k, g_q), (dg_k, dg_q) = gates, dgates
    (W, r, rho), (kept_W, kept_r, kept_rho), (dW, dr, drho) = state, kept, dstate
    post, normalize, temporal_k, temporal_q = flags
    dkey_usage, dkey_entropy, dquery_usage, dquery_entropy = drouting
    _, H, J, V = beta.shape
    K, one, zero = q.shape[2], half + half, half - half
    Ws = np.empty((C + 1, J, K, V), beta.dtype)
    rs, rhos = np.empty((C + 1, J, V), beta.dtype), np.empty((C + 1, J, V), beta.dtype)
    many = np.empty((6, C, J, V), beta.dtype)
    pis, pi_qs, deltas, cs, Ss, alphas_v = many[0], many[1], many[2], many[3], many[4], many[5]
    alphas_k = np.empty((C, J, K), beta.dtype)
    few = np.empty((7, J, V), beta.dtype)
    dS, e, du, dz, m, p, dlog_pi = few[0], few[1], few[2], few[3], few[4], few[5], few[6]
    total = np.empty(V, beta.dtype)
    for unit in units:
        n, h = unit // H, unit % H
        adjoint_W, adjoint_rho = dW[n, h], drho[n, h]
        length = bounds[n + 1] - bounds[n]
        last = (length - 1) // C
        for chunk in range(last, -1, -1):
            begin = bounds[n] + chunk * C
            count = min(C, bounds[n + 1] - begin)
            if chunk:
                row = kept_rows[n] + chunk - 1
                Ws[0, ...], rs[0, ...], rhos[0, ...] = kept_W[row, h], kept_r[row, h], kept_rho[row, h]
            else:
                Ws[0, ...], rs[0, ...], rhos[0, ...] = W[n, h], r[n, h], rho[n, h]
            for i in range(count):
                t = begin + i
                Ws[i + 1, ...], rs[i + 1, ...], rhos[i + 1, ...] = Ws[i], rs[i], rhos[i]
                key_prior(key_logits[t, h], temporal_k, normalize, pis[i], one, tiny)
                if kind:
                    factors(log_decay[t, h], kind, alphas_k[i], alphas_v[i], one)
                token(
                    Ws[i + 1], q[t, h], k[t, h], v[t, h], beta[t, h], pis[i], g_k[t % g_k.shape[0], h], temporal_k,
                    alphas_k[i], alphas_v[i], kind, post, normalize, rs[i + 1], deltas[i], cs[i], Ss[i], half, tiny,
                )  # fmt: skip
                softmax(query_logits[t, h], pi_qs[i], one)
                mix(pi_qs[i], g_q[t % g_q.shape[0], h], temporal_q, rhos[i + 1], one)
            if chunk == last:
                for j in range(J):
                    for d in range(V):
                        m[j, d] = rs[count, j, d] * dr[n, h, j, d]

            for i in range(count - 1, -1, -1):
                t = begin + i
                query_adjoint(
                    do[t, h], Ss[i], rhos[i], rhos[i + 1], pi_qs[i], g_q[t % g_q.shape[0], h], temporal_q, adjoint_rho,
                    dquery_logits[t, h], dg_q[t % dg_q.shape[0], h], dquery_usage[h], dquery_entropy[h], weight,
                    with_stats, dS, total, tiny,
                )  # fmt: skip
                read_adjoint(adjoint_W, Ws[i + 1], q[t, h], k[t, h], cs[i], dS, e, dq[t, h], dk[t, h], zero)
                for d in range(V):
                    total[d] = zero
                for j in range(J):
                    for d in range(V):
                        rj, delta = rs[i + 1, j, d], deltas[i, j, d]
                        dz[j, d] = e[j, d] * beta[t, h, j, d] * rj * delta
                        if temporal_k:
                            dz[j, d] += m[j, d]
                        if with_stats:
                            entropy = rj * log(at_least(rj, tiny)) + rj
                            dz[j, d] += weight * (rj * dkey_usage[h, j, d] - entropy * dkey_entropy[h, d])
                        total[d] += dz[j, d]
                for j in range(J):
                    for d in range(V):
                        if normalize:
                            dz[j, d] -= rs[i + 1, j, d] * total[d]
                        du[j, d] = deltas[i, j, d] * dz[j, d] - e[j, d] * beta[t, h, j, d] * rs[i + 1, j, d]
                        dbeta[t, h, j, d] = e[j, d] * rs[i + 1, j, d] * deltas[i, j, d]
                for d in range(V):
                    total[d] = zero
                    dv[t, h, d] = zero
                for j in range(J):
                    for d in range(V):
                        dv[t, h, d] -= du[j, d]
                if temporal_k:
                    g, dg = g_k[t, h], dg_k[t, h]
                    for d in range(V):
                        dg[d] = zero
                    for j in range(J):
                        for d in range(V):
                            before, prior = rs[i, j, d], pis[i, j, d]
                            blend = at_least((one - g[d]) * before + g[d] * prior, tiny)
                            steep = dz[j, d] * ((prior - before) / blend)
                            dg[d] += steepest if steep > steepest else (-steepest if steep < -steepest else steep)
                            dlog_pi[j, d] = g[d] * prior / blend * dz[j, d]
                            m[j, d] = (one - g[d]) * before / blend * dz[j, d]
                            p[j, d] = prior
                            total[d] += dlog_pi[j, d]
                            if t == bounds[n]:
                                steep = dz[j, d] * ((one - g[d]) / blend)
                                steep = steepest if steep > steepest else (-steepest if steep < -steepest else steep)
                                dr[n, h, j, d] = steep
                else:
                    for j in range(J):
                        for d in range(V):
                            dlog_pi[j, d] = dz[j, d]
                            p[j, d] = zero if normalize else exp(pis[i, j, d])
                            total[d] += dz[j, d]
                for j in range(J):
                    for d in range(V):
                        dkey_logits[t, h, j, d] = dlog_pi[j, d] - p[j, d] * total[d]
                write_adjoint(
                    adjoint_W, Ws[i], k[t, h], du, alphas_k[i], alphas_v[i], kind, post, dk[t, h],
                    dlog_decay[t % dlog_decay.shape[0], h], zero,
                )  # fmt: skip


@njit(**inlined)
def query_adjoint(
    do, S, rho_last, rho, pi, g, temporal, drho, dlogits, dg, dusage, dentropy, weight, with_stats, dS, total, tiny
):
    """Adjoint of retrieval: dS and the gradients of logits and gate; ``drho`` becomes that of the previous token."""
    J, V = rho.shape
    zero, one = tiny - tiny, weight / weight
    for d in range(V):
        total[d] = zero
        if temporal:
            dg[d] = zero
    for j in range(J):
        for d in range(V):
            dS[j, d] = rho[j, d] * do[d]
            back = do[d] * S[j, d]
            if with_stats:
                entropy = log(at_least(rho[j, d], tiny)) + one
                back += weight * (dusage[j, d] - entropy * dentropy[d])
            if temporal:
                back += drho[j, d]
                dg[d] += back * (pi[j, d] - rho_last[j, d])
                drho[j, d] = (one - g[d]) * back
                back *= g[d]
            dlogits[j, d] = back
            total[d] += pi[j, d] * back
    for j in range(J):
        for d in range(V):
            dlogits[j, d] = pi[j, d] * (dlogits[j, d] - total[d])


@njit(**inlined)
def read_adjoint(dW, W, q, k, c, dS, e, dq, dk, zero):
    """``dW += dS ⊗ q`` and ``e = dW k``; computes dq, and the part of dk from the write."""
    J, K, V = W.shape
    for i in range(K):
        dq[i] = zero
        dk[i] = zero
    for j in range(J):
        for d in range(V):
            e[j, d] = zero
        for i in range(K):
            to_q, to_k = zero, zero
            for d in range(V):
                w = dW[j, i, d] + q[i] * dS[j, d]
                dW[j, i, d] = w
                e[j, d] += k[i] * w
                to_k += c[j, d] * w
                to_q += dS[j, d] * W[j, i, d]
            dq[i] += to_q
            dk[i] += to_k


@njit(**inlined)
def write_adjoint(dW, W, k, du, alpha_k, alpha_v, kind, post, dk, dlog_decay, zero):
    """``dW`` of the state before the token, through the decay and with du; adds the part of dk from the read."""
    J, K, V = W.shape
    for j in range(J):
        if kind > 1:
            for d in range(dlog_decay.shape[1]):
                dlog_decay[j, d, 0] = zero
        for i in range(K):
            to_k, to_decay = zero, zero
            if kind == 0:
                for d in range(V):
                    to_k += du[j, d] * W[j, i, d]
                    dW[j, i, d] += k[i] * du[j, d]
            else:
                for d in range(V):
                    a = alpha_k[j, i] * alpha_v[j, d]
                    decayed = a * W[j, i, d]
                    w = dW[j, i, d] if post else dW[j, i, d] + k[i] * du[j, d]
                    to_k += du[j, d] * (W[j, i, d] if post else decayed)
                    dW[j, i, d] = a * w + k[i] * du[j, d] if post else a * w
                    if kind == 2:
                        dlog_decay[j, d, 0] += w * decayed
                    else:
                        to_decay += w * decayed
            dk[i] += to_k
            if kind == 1:
                dlog_decay[j, 0, i] = to_decay
            elif kind == 3:
                dlog_decay[j, 0, 0] += to_decay
