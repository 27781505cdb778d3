"""Pair products under decay, against all pairs written out, with autograd for the gradients."""

import pytest
import torch

from swila.ops.blocked.decay import UNDECAYED, Decayed

C, D, BATCH = 8, 3, (2, 2)


def dense(log_alpha, inclusive):
    """``Γ [..., t, s, D]``: 0 where s > t, 1 where s = t, else the product of what lies between."""
    gamma = log_alpha.new_zeros(*log_alpha.shape[:-2], C, C, D)
    for t in range(C):
        for s in range(t):
            gamma[..., t, s, :] = log_alpha[..., s + 1 : t + inclusive, :].sum(-2).exp()
        gamma[..., t, t, :] = 1
    return gamma


@pytest.fixture
def tensors():
    x, y = (torch.randn(*BATCH, C, D, dtype=torch.float64, requires_grad=True) for _ in range(2))
    M = torch.randn(*BATCH, C, C, dtype=torch.float64).tril().requires_grad_()
    log_alpha = (-3 * torch.rand(*BATCH, C, D, dtype=torch.float64)).requires_grad_()
    return x, y, M, log_alpha


@pytest.mark.parametrize("inclusive", [True, False])
def test_pair_products(tensors, inclusive):
    x, y, M, log_alpha = tensors
    gamma, decay = dense(log_alpha, inclusive), Decayed(log_alpha.detach(), inclusive)
    full = torch.einsum("...td,...tsd,...sd->...ts", x, gamma, y)
    dx, dy, dlog_alpha = torch.autograd.grad((M * full).sum(), [x, y, log_alpha])
    x, y, M, full = (t.detach() for t in (x, y, M, full))
    torch.testing.assert_close(decay.gram(x, y, own=True), full)
    torch.testing.assert_close(decay.gram(x, y), full.tril(-1))
    torch.testing.assert_close(decay.read(M, y), dx)
    torch.testing.assert_close(decay.write(M, x), dy)
    for found, expected in zip(decay.gram_adjoint(M, x, y), (dx, dy, dlog_alpha), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("inclusive", [True, False])
def test_bounds(tensors, inclusive):
    x, y, _, log_alpha = tensors
    decay = Decayed(log_alpha.detach(), inclusive)
    start = torch.stack([log_alpha[..., : t + inclusive, :].sum(-2).exp() for t in range(C)], -2)
    end = torch.stack([log_alpha[..., s + 1 :, :].sum(-2).exp() for s in range(C)], -2)
    W = torch.randn(*BATCH, 5, D, dtype=torch.float64)
    across = W * log_alpha.sum(-2).exp().unsqueeze(-2)
    for found, expected, gradient in (
        (decay.from_start(x), start * x, lambda g: decay.start_gradient(x, g)),
        (decay.to_end(y), end * y, lambda g: decay.end_gradient(y, g)),
        (decay.across(W, -1), across, lambda g: decay.across_gradient(W, g, -1).expand_as(log_alpha)),
    ):
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(expected)
        (grad,) = torch.autograd.grad(expected, log_alpha, weight)
        torch.testing.assert_close(gradient(weight), grad)
    torch.testing.assert_close(decay.across(W.mT, -2), across.mT)


def test_no_decay_is_decay_of_one(tensors):
    x, y, M, log_alpha = (t.detach() for t in tensors)
    one = Decayed(torch.zeros_like(log_alpha), inclusive=True)
    for method, arguments in (("gram", (x, y, True)), ("gram", (x, y)), ("read", (M, y)), ("write", (M, x))):
        torch.testing.assert_close(getattr(UNDECAYED, method)(*arguments), getattr(one, method)(*arguments))


def test_no_overflow():
    """One token forgets all but e^-1000: forming exp(-G) would overflow, the split factors do not."""
    log_alpha = torch.full((C, D), -0.1)
    log_alpha[2] = -1000.0
    ones = torch.ones(C, D)
    M = Decayed(log_alpha, inclusive=True).gram(ones, ones)
    torch.testing.assert_close(M[7, 3], torch.tensor(D * 0.67032003))
    assert M[7, 1] == 0
