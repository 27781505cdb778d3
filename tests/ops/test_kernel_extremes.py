"""The CUDA kernels with values that are large, tiny or broken."""

import math
from itertools import product

import pytest
import torch
from served import assert_broken_values_spread, assert_infinite_logits_are_seen_or_large, assert_right

from swila import SwitchingState, switching_delta_rule
from swila.testing import VARIANTS, Shape, Variant, evaluate, make_call

BF16, F32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize("name", ["plain", "temporal"])
def test_likelihoods_far_apart(kernels, device, name):
    """Whichever mixture is by far the likeliest, its share is one, also if all are far from likely."""
    call = make_call(VARIANTS[name], Shape(B=1, T=18, H=1, K=16, V=16, J=3), dtype=BF16, device=device)
    call |= {"k": torch.full_like(call["k"], 0.25), "v": torch.full_like(call["v"], 160.0)}
    start = call["initial_state"]
    for j in range(3):
        W = torch.zeros_like(start.W)
        W[:, :, j] = 32.0  # predicts 128
        call["initial_state"] = start._replace(W=W)
        found = switching_delta_rule(**call, routing_stats=True, backend=kernels)
        assert found.output.isfinite().all()
        usage = found.stats.key_usage[:, j]
        torch.testing.assert_close(usage, torch.ones_like(usage))
        torch.testing.assert_close(found.stats.key_entropy, torch.zeros_like(found.stats.key_entropy))
        without = switching_delta_rule(**call, backend=kernels)  # takes another path
        torch.testing.assert_close(without.output, found.output)


@pytest.mark.parametrize(("name", "stats"), [("plain", False), ("plain", True), ("temporal", False)])
def test_a_few_values_far_from_all_predictions(kernels, device, name, stats):
    """In one chunk of several, of some output dims: the first mixture is by far less likely than another there."""
    call = make_call(VARIANTS[name], Shape(B=1, T=53, H=1, K=16, V=32, J=4), dtype=BF16, device=device)
    v = call["v"].detach().clone()
    v[:, 20:22, :, 5:20] = 400.0
    call["v"] = v.requires_grad_()
    assert_right(call, kernels, statistics=stats)


@pytest.mark.parametrize("kernels", [{"processors": 1}], indirect=True, ids=["many"])
@pytest.mark.parametrize("stats", [False, True])
def test_an_outlier_at_the_end_of_a_chunk(kernels, device, stats):
    """The first mixture is less likely by 2^50 to 2^127 there, and errors are large."""
    V, D = 64, 5120.0
    call = make_call(VARIANTS["plain"], Shape(B=1, T=32, H=1, K=16, V=V, J=2), dtype=BF16, device=device)
    call |= {name: torch.zeros_like(call[name]) for name in ("v", "beta", "key_logits", "query_logits")}
    call |= {name: torch.full_like(call[name], 0.25) for name in ("q", "k")}
    call["v"][:, 15], call["beta"][:, 15] = D, 1.0
    W = torch.zeros_like(call["initial_state"].W)
    W[:, :, 1] = (torch.linspace(50, 127, V, device=device) / (math.log2(math.e) * D) / 4).unsqueeze(1)
    call["initial_state"] = SwitchingState(W, None, None)
    found = switching_delta_rule(**call, return_state=True, routing_stats=stats, backend=kernels)
    expected = switching_delta_rule(**call, return_state=True, backend="reference")
    for ours, true in ((found.output, expected.output), (found.state.W, expected.state.W)):
        assert (ours.float() - true.float()).norm() < 0.02 * true.float().norm()


THREE, TWO, FIRST = [(14, 14), (0, 12), (12, 0)], [(18.5, 0), (0, 12.5)], [(0, 9), (16, 0)]


@pytest.mark.parametrize(
    ("errors", "holder", "stats", "dtype"),
    [
        (THREE, 0, True, BF16),
        (THREE, 0, False, BF16),
        (TWO, 0, False, BF16),
        (TWO, 0, False, F32),
        (FIRST, 1, False, BF16),
    ],
    ids=["three-stats", "three", "two", "two-float32", "first"],
)
@pytest.mark.parametrize("kernels", [{"processors": 1}, {"processors": 132}], indirect=True, ids=["many", "few"])
def test_the_likeliest_mixture_has_the_smallest_prior(kernels, device, errors, holder, stats, dtype):
    """With gates of zero: at the first of two tokens the mixture that has all of the prior is by far less likely."""
    J, V = len(errors), 32
    variant = Variant(None, "pre", True, False, True)
    call = make_call(variant, Shape(B=1, T=2, H=1, K=16, V=V, J=J), dtype=dtype, requires_grad=False, device=device)
    call["k"] = torch.eye(16, device=device)[:2].view(1, 2, 1, 16).to(dtype)
    call |= {"q": call["k"], "beta": torch.full_like(call["beta"], 0.5)}
    call |= {name: torch.zeros_like(call[name]) for name in ("v", "key_gate", "key_logits", "query_logits")}
    W, r = torch.zeros_like(call["initial_state"].W), torch.zeros_like(call["initial_state"].r)
    r[:, :, holder] = 1
    W[..., :2] = -torch.tensor(errors, device=device).view(J, 1, 2)

    def results(backend):
        state = SwitchingState(W.clone().requires_grad_(), r, None)
        v = call["v"].clone().requires_grad_()
        found = switching_delta_rule(
            **call | {"initial_state": state, "v": v}, return_state=True, routing_stats=stats, backend=backend
        )
        loss = found.output[:, 1].float().sum() + found.state.W.sum()
        return found.state.r, found.state.W, *torch.autograd.grad(loss, [v, state.W])

    for found, expected in zip(results(kernels), results("reference"), strict=True):
        torch.testing.assert_close(found.float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kernels", [{"processors": 1}, {"processors": 132}], indirect=True, ids=["many", "few"])
def test_gradients_of_a_prior_that_is_hardly_there(kernels, device):
    """The derivative with respect to a prior of e^-80 is clamped, that with respect to its logit is an ordinary number.

    The error of the other mixture is such that both have a share.
    """
    gap, dtype = 80.0, BF16
    variant = Variant(None, "pre", True, False, True)
    call = make_call(variant, Shape(B=1, T=2, H=1, K=16, V=32, J=2), dtype=dtype, requires_grad=False, device=device)
    error = (2 * gap) ** 0.5
    call |= {name: torch.full_like(call[name], 0.25) for name in ("q", "k")}
    call |= {"v": torch.full_like(call["v"], error), "key_gate": torch.ones_like(call["key_gate"])}
    call["beta"] = torch.full_like(call["beta"], 0.5)
    call["beta"][:, 0] = 0
    call |= {name: torch.zeros_like(call[name]) for name in ("key_logits", "query_logits")}
    call["key_logits"][:, :, :, 1] = -gap
    W, r = torch.zeros_like(call["initial_state"].W), torch.ones_like(call["initial_state"].r)
    W[:, :, 1], r[:, :, 1] = (error - 0.5) / 4, 0
    call["initial_state"] = SwitchingState(W, r, None)

    def gradients(backend, cast):
        x = {name: cast(t).requires_grad_() for name, t in call.items() if isinstance(t, torch.Tensor)}
        state = SwitchingState(cast(W), cast(r), None)
        out = switching_delta_rule(**call | x | {"initial_state": state}, backend=backend).output
        return torch.autograd.grad(out[:, 1].sum(), [x["key_logits"], x["key_gate"]])

    (found, gate), (expected, _) = gradients(kernels, torch.clone), gradients("reference", torch.Tensor.double)
    assert expected[0, 1].abs().min() > 0.5
    torch.testing.assert_close(found[0, 1].double(), expected[0, 1], rtol=0.1, atol=0)
    assert gate[0, 1].abs().max() > 7e28


EXTREME = [
    Variant(decay, order, temporal, temporal, normalize)
    for decay, order, temporal, normalize in product(
        (None, "key", "value"), ("pre", "post"), (False, True), (False, True)
    )
]


@pytest.mark.parametrize("variant", EXTREME, ids=str)
def test_extremes_stay_finite(kernels, device, variant):
    from test_extremes import extreme_call

    if device == "cpu" and (variant.decay_order == "post" or (variant.key_temporal and not variant.normalize)):
        pytest.skip("the GPU tests have these too")
    call = extreme_call(variant, 0, BF16, Shape(B=1, T=40, H=1, K=16, V=16, J=4), device)
    bad = [name for name, t in evaluate(call, kernels).items() if not t.isfinite().all()]
    assert not bad


@pytest.mark.parametrize("argument", ["q", "k", "v", "beta", "key_logits", "query_logits", "key_gate", "query_gate"])
@pytest.mark.parametrize(("name", "J"), [("temporal", 3), ("temporal", 8), ("gated-temporal", 3)])
def test_broken_values_are_seen_in_the_results(kernels, device, name, J, argument):
    call = make_call(VARIANTS[name], Shape(B=1, T=20, H=1, K=16, V=16, J=J), dtype=BF16, device=device)
    assert_broken_values_spread(call, kernels, argument)


@pytest.mark.parametrize(
    ("name", "J", "dtype"), [("plain", 3, F32), ("plain", 1, F32), ("plain", 4, BF16), ("gated", 2, BF16)]
)
def test_infinite_logits_are_seen_or_taken_for_large_ones(kernels, device, name, J, dtype):
    call = make_call(VARIANTS[name], Shape(B=1, T=20, H=1, K=16, V=16, J=J), dtype=dtype, device=device)
    for argument in ("key_logits", "query_logits"):
        assert_infinite_logits_are_seen_or_large(call, kernels, argument)


@pytest.mark.parametrize("decay", ["key", "value", "head"])
def test_gradient_of_a_strong_decay_is_small_not_noise(kernels, device, decay):
    call = make_call(Variant(decay), Shape(B=1, T=40, H=1, K=16, V=16, J=2), dtype=F32, device=device)
    call["log_decay"] = torch.full_like(call["log_decay"], -40.0).requires_grad_()
    output = switching_delta_rule(**call, backend=kernels).output
    (grad,) = torch.autograd.grad(output.square().sum(), call["log_decay"])
    assert 0 < grad.abs().max() < 1e-14
