"""The mutual-information loss and the diagnostics against their definitions, from responsibilities."""

import math

import pytest
import torch
from mixers import random
from torch.testing import assert_close

from swila import RoutingStats, switching_delta_rule
from swila.layers import mutual_information_loss, routing_diagnostics
from swila.ops.backends import get_backend, why_not
from swila.testing import VARIANTS, Shape, make_call, problem_of


def stats_of(r, rho):
    """From responsibilities and mix ``[B, T, H, J, V]``, as the operation defines them."""

    def entropy(p):
        return -torch.xlogy(p, p).sum(-2).mean((0, 1))

    return RoutingStats(r.mean((0, 1)), entropy(r), rho.mean((0, 1)), entropy(rho))


def random_routing(seed):
    return random(2, 5, 2, 3, 4, seed=seed).softmax(3)


def test_the_papers_formula():
    r, rho = random_routing(0), random_routing(1)
    total = 0.0
    for p in (r, rho):
        for h in range(2):
            for d in range(4):
                column = p[:, :, h, :, d].reshape(-1, 3)
                mean = column.mean(0)
                marginal = -(mean * mean.log()).sum()
                conditional = -(column * column.log()).sum(1).mean()
                total += (-0.3 * marginal + 0.7 * conditional) / (2 * 4 * 2)
    assert_close(mutual_information_loss(stats_of(r, rho), 0.3, 0.7), total)


def test_extremes():
    J = 4
    even = torch.full((1, 8, 1, J, 2), 1 / J, dtype=torch.float64)
    committed = torch.eye(J, dtype=torch.float64).repeat(2, 1)[None, :, None, :, None].expand(1, 8, 1, J, 2)
    collapsed = torch.eye(J, dtype=torch.float64)[0].expand(1, 8, 1, 2, J).mT
    assert_close(mutual_information_loss(stats_of(even, even)).item(), 0.0)
    assert_close(mutual_information_loss(stats_of(committed, committed)).item(), -math.log(J))
    assert_close(mutual_information_loss(stats_of(collapsed, collapsed)).item(), 0.0, atol=1e-12, rtol=0)
    found = routing_diagnostics(stats_of(committed, collapsed))
    assert_close([v.item() for v in found], [1.0, 0.0, 0.0, 0.0, 0.0, 0.75], atol=1e-12, rtol=0)
    assert_close([v.item() for v in routing_diagnostics(stats_of(even, even))], [1.0, 1.0, 0.0] * 2)


def test_dead_is_below_a_tenth_of_uniform():
    usage = torch.tensor([0.024, 0.026, 0.45, 0.5]).view(1, 4, 1)
    stats = RoutingStats(usage, torch.zeros(1, 1), usage, torch.zeros(1, 1))
    assert routing_diagnostics(stats).key_dead_fraction == 0.25


def test_one_mixture():
    one = torch.ones(1, 3, 1, 1, 2)
    assert [v.item() for v in routing_diagnostics(stats_of(one, one))] == [1.0, 0.0, 0.0] * 2
    assert mutual_information_loss(stats_of(one, one)) == 0


def test_gradients_stay_finite_for_a_dead_mixture():
    usage = torch.tensor([1.0, 0.0], dtype=torch.float64).view(1, 2, 1).requires_grad_()
    stats = RoutingStats(usage, torch.zeros(1, 1), usage, torch.zeros(1, 1))
    (grad,) = torch.autograd.grad(mutual_information_loss(stats), usage)
    assert grad.isfinite().all()


@pytest.mark.parametrize("variant", ["plain", "gated-temporal"])
def test_gradients_through_the_operation(variant, backend, device):
    """Central differences of the loss in every input."""
    call = make_call(
        VARIANTS[variant], Shape(B=1, T=5, H=1, K=2, V=2, J=3), dtype=torch.float64, device=device, requires_grad=False
    )
    if reason := why_not(get_backend(backend), problem_of(call)):
        pytest.skip(reason)
    names = [n for n, t in call.items() if isinstance(t, torch.Tensor) and t.is_floating_point()]

    def loss(*inputs):
        arguments = call | dict(zip(names, inputs, strict=True))
        out = switching_delta_rule(**arguments, routing_stats=True, backend=backend)
        return mutual_information_loss(out.stats, 0.4, 0.9)

    assert torch.autograd.gradcheck(loss, [call[n].clone().requires_grad_() for n in names])
