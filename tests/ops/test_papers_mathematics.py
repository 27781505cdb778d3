"""What the paper derives (App. B.1, B.4, D.1, D.2), checked in float64 against the operation."""

import pytest
import torch

from swila import SwitchingState, switching_delta_rule

T, K, V, J = 24, 5, 3, 4


def one_sequence(seed=0, mixtures=J):
    """Arguments for one sequence and head, with keys of unit length."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(1, T, 1, *size, generator=generator, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(normal(K), dim=-1) for _ in range(2))
    logits = {"key_logits": normal(mixtures, V), "query_logits": normal(mixtures, V)}
    return {"q": q, "k": k, "v": 2 * normal(V), "beta": normal(mixtures, V).sigmoid(), **logits}


def token(call, t):
    """Key, value, learning rates and priors of one token."""
    pi = call["key_logits"][0, t, 0].softmax(0)
    return call["k"][0, t, 0], call["v"][0, t, 0], call["beta"][0, t, 0], pi


def log_likelihood(W, k, v, pi):
    """The log-likelihood of section 3.1 for every output dim; W is [J, V, K]."""
    return (pi.log() - 0.5 * (v - W @ k) ** 2).logsumexp(0)


def step(W, k, v, beta, pi):
    """The recurrence of section 3.2: the new weights, the responsibilities and the errors."""
    delta = v - W @ k
    r = (pi.log() - 0.5 * delta**2).softmax(0)
    return W + (beta * r * delta).unsqueeze(-1) * k, r, delta


def test_the_recurrence_ascends_the_likelihood():
    """App. B.1: a token's update is β times the gradient of its log-likelihood."""
    call = one_sequence()
    start = torch.randn(1, 1, J, V, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first = {name: tensor[:, :1] for name, tensor in call.items()}
    out = switching_delta_rule(**first, initial_state=SwitchingState(start), return_state=True, backend="reference")
    k, v, beta, pi = token(call, 0)
    W = start[0, 0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(log_likelihood(W, k, v, pi).sum(), W)
    torch.testing.assert_close(out.state.W[0, 0], (W + beta.unsqueeze(-1) * gradient).detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixtures", [1, 2])
def test_the_two_orders_of_decay_are_one_for_one_mixture(mixtures):
    """App. B.4: with J = 1, (α, β, v) after the error is (α, β/α, α v) before it; with more mixtures it is not."""
    call = one_sequence(mixtures=mixtures)
    call["beta"] = 0.4 * call["beta"]
    alpha = 0.5 + 0.5 * torch.rand(1, T, 1, 1, V, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    log_decay = alpha.log().expand(-1, -1, -1, mixtures, -1, -1).contiguous()
    rate = alpha.squeeze(-1)
    other = call | {"beta": call["beta"] / rate, "v": rate[..., 0, :] * call["v"]}
    post = switching_delta_rule(**call, log_decay=log_decay, decay_order="post", backend="reference").output
    pre = switching_delta_rule(**other, log_decay=log_decay, decay_order="pre", backend="reference").output
    assert torch.allclose(post, pre, rtol=0, atol=1e-12) == (mixtures == 1)


def coefficient(beta, r, delta):
    """App. D.2: how much of ``k kᵀ`` the Jacobian of a mixture in its own weights takes from the identity."""
    return beta * r * (1 - delta**2 * (1 - r))


def test_the_jacobian_is_the_identity_less_a_rank_of_one():
    """App. D.2, for each mixture and output dim in its own weights."""
    call = one_sequence()
    k, v, beta, pi = token(call, 3)
    W = torch.randn(J, V, K, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    _, r, delta = step(W, k, v, beta, pi)
    jacobian = torch.autograd.functional.jacobian(lambda W: step(W, k, v, beta, pi)[0], W)
    g = coefficient(beta, r, delta)
    for j in range(J):
        for d in range(V):
            expected = torch.eye(K, dtype=torch.float64) - g[j, d] * torch.outer(k, k)
            torch.testing.assert_close(jacobian[j, d, :, j, d], expected, rtol=0, atol=1e-12)


def newton(call, guess):
    """One iteration of the linearised recurrence of App. D.2, for the states [T, J, V, K] after every token."""
    before = torch.cat([torch.zeros(1, J, V, K, dtype=torch.float64), guess[:-1]])
    states, W = [], torch.zeros(J, V, K, dtype=torch.float64)
    for t in range(T):
        k, v, beta, pi = token(call, t)
        new, r, delta = step(before[t], k, v, beta, pi)
        moved = W - before[t]
        W = new + moved - (coefficient(beta, r, delta) * (moved @ k)).unsqueeze(-1) * k
        states.append(W)
    return torch.stack(states)


def test_newton_iterations_end_at_the_sequential_states():
    """App. D.1, D.2: with these approximate Jacobians, from any guess, after as many iterations as tokens at most."""
    call = one_sequence()
    exact, W = [], torch.zeros(J, V, K, dtype=torch.float64)
    for t in range(T):
        W, *_ = step(W, *token(call, t))
        exact.append(W)
    exact = torch.stack(exact)
    out = switching_delta_rule(**call, return_state=True, backend="reference")
    torch.testing.assert_close(out.state.W[0, 0], exact[-1], rtol=0, atol=1e-12)
    guess = torch.randn(T, J, V, K, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for iteration in range(1, T + 1):
        guess = newton(call, guess)
        torch.testing.assert_close(guess[:iteration], exact[:iteration], rtol=0, atol=1e-10)
