r"""Switching linear attention in two functions: the recurrence, and the same numbers by matrix products.

The update of SwiLA is nonlinear in its state, so no associative scan applies. But the state enters the nonlinearity
only through the J V numbers ``u_t = W k_t``, and every update is along ``k_t``. In a chunk that starts at state ``W``::

    u_t = W k_t + Σ_{s<t} (k_t · k_s) c_s          δ_t = v_t - u_t,   r_t = softmax_j(log π_t - δ_t²/2)
    S_t = W q_t + Σ_{s≤t} (q_t · k_s) c_s          c_t = β_t r_t δ_t
    W'  = W + Σ_s c_s k_sᵀ                         o_t = Σ_j ρ_tj S_tj

All terms with K in them are matrix products over the chunk. What remains sequential is a triangular substitution of J
numbers per output dim: exact, without iterations. This file needs torch alone: ``python minimal.py`` compares the two.

Shapes: ``q, k [B, T, H, K]``, ``v [B, T, H, V]``, ``beta, key_logits, query_logits [B, T, H, J, V]``; J regressors per
head. Unit keys, 0 ≤ beta ≤ 1. This is the plain variant, forward only, without decay and temporal gates; the complete
algorithm is in ``algorithm.py``, its adjoint in ``adjoint.py``.
"""

import torch
from torch import Tensor, einsum


def token_loop(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, key_logits: Tensor, query_logits: Tensor) -> Tensor:
    """Output ``[B, T, H, V]`` by the recurrence, token by token."""
    B, T, H, J, V = beta.shape
    log_pi, rho = key_logits.log_softmax(3), query_logits.softmax(3)
    W, outputs = q.new_zeros(B, H, J, V, q.shape[3]), []
    for t in range(T):
        delta = v[:, t, :, None] - einsum("bhjvk,bhk->bhjv", W, k[:, t])  # prediction errors
        r = (log_pi[:, t] - delta**2 / 2).softmax(2)  # responsibilities of the mixtures
        W = W + einsum("bhjv,bhk->bhjvk", beta[:, t] * r * delta, k[:, t])
        outputs.append((rho[:, t] * einsum("bhjvk,bhk->bhjv", W, q[:, t])).sum(2))
    return torch.stack(outputs, 1)


def blocked(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, key_logits: Tensor, query_logits: Tensor, chunk: int = 32
) -> Tensor:
    """Output ``[B, T, H, V]`` by the exact blocked algorithm, ``chunk`` tokens at a time."""
    B, _, H, J, V = beta.shape
    inputs = q, k, v, beta, key_logits.log_softmax(3), query_logits.softmax(3)
    W, outputs = q.new_zeros(B, H, J, V, q.shape[3]), []
    for q, k, v, beta, log_pi, rho in zip(*(x.split(chunk, 1) for x in inputs), strict=True):
        A = einsum("bthk,bshk->bhts", k, k)
        P = einsum("bthk,bshk->bhts", q, k).tril()
        U = einsum("bhjvk,bthk->bthjv", W, k)  # u_t without the writes of this chunk
        c = torch.zeros_like(beta)
        for t in range(c.shape[1]):  # the only sequential part
            u = U[:, t] + einsum("bhs,bshjv->bhjv", A[:, :, t, :t], c[:, :t])
            delta = v[:, t, :, None] - u
            r = (log_pi[:, t] - delta**2 / 2).softmax(2)
            c[:, t] = beta[:, t] * r * delta
        S = einsum("bhjvk,bthk->bthjv", W, q) + einsum("bhts,bshjv->bthjv", P, c)
        outputs.append((rho * S).sum(3))
        W = W + einsum("bshjv,bshk->bhjvk", c, k)
    return torch.cat(outputs, 1)


if __name__ == "__main__":
    B, T, H, K, V, J = 2, 100, 2, 16, 16, 4
    q, k = torch.nn.functional.normalize(torch.randn(2, B, T, H, K, dtype=torch.float64), dim=-1)
    v, beta = torch.randn(B, T, H, V).double(), torch.rand(B, T, H, J, V).double()
    call = q, k, v, beta, *torch.randn(2, B, T, H, J, V).double()
    print("largest difference:", (blocked(*call) - token_loop(*call)).abs().max().item())
