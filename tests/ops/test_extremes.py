"""Values no one should train with: everything stays finite, gradients too."""

from itertools import product

import pytest
import torch
from served import on_cpu

from swila import switching_delta_rule
from swila.ops.backends import get_backend, why_not
from swila.testing import Shape, Variant, evaluate, make_call, problem_of

SHAPE = Shape(B=1, T=70, H=2, K=16, V=16, J=4)
DECAYS, ORDERS, EITHER = (None, "key", "value", "head"), ("pre", "post"), (False, True)
EXTREME = [
    Variant(decay, order, temporal, temporal, normalize)
    for decay, order, temporal, normalize in product(DECAYS, ORDERS, EITHER, EITHER)
]


def extreme_call(variant, seed, dtype, shape=SHAPE, device="cpu"):
    """|δ| up to 1e4, decays down to e^-40 a token, β and gates of 0 and 1 and between, logits of ±80."""
    call = make_call(variant, shape, dtype=dtype, requires_grad=False, initial_state=False)
    generator = torch.Generator().manual_seed(seed)

    def uniform(name):
        return torch.rand(call[name].shape, generator=generator, dtype=torch.float64)

    sign = uniform("v").sub(0.5).sign()
    call["v"] = sign * 10 ** (uniform("v") * 6 - 2)
    for name in ("beta", "key_gate", "query_gate"):
        if name in call:
            call[name] = (3 * uniform(name) - 1).clamp(0, 1)
    for name in ("key_logits", "query_logits"):
        call[name] = 80 * uniform(name).sub(0.5).sign() * (uniform(name) < 0.7)
    if variant.decay:
        call["log_decay"] = -40 * uniform("log_decay") * (uniform("log_decay") < 0.5)
    return {k: v.to(device, dtype).requires_grad_() if isinstance(v, torch.Tensor) else v for k, v in call.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_finite(any_backend, device, dtype):
    if reason := why_not(get_backend(any_backend), problem_of(make_call(dtype=dtype, device=device))):
        pytest.skip(reason)
    for variant, seed in product(EXTREME, range(2)):
        found = evaluate(extreme_call(variant, seed, dtype, device=device), any_backend)
        bad = [what for what, t in found.items() if not t.isfinite().all()]
        assert not bad, (variant, seed, bad)


@pytest.mark.parametrize("variant", EXTREME[::3], ids=str)
def test_outputs_agree(variant):
    """Where roundings decide between mixtures runs may part, but in float64 that is rare enough to compare."""
    call = extreme_call(variant, 3, torch.float64, Shape(B=1, T=40, H=1, K=8, V=4, J=3))
    outputs = {name: switching_delta_rule(**call, backend=name).output for name in on_cpu()}
    for output in outputs.values():
        torch.testing.assert_close(output, outputs["reference"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("decay", ["key", "value", "head"])
def test_gradient_of_a_strong_decay_is_small_not_noise(any_backend, device, decay):
    """α = e^-40 forgets everything: the gradient of its logarithm is of that size, and comes out so."""
    call = make_call(Variant(decay), Shape(B=1, T=40, H=1, K=16, V=16, J=2), dtype=torch.float32, device=device)
    call["log_decay"] = torch.full_like(call["log_decay"], -40.0).requires_grad_()
    output = switching_delta_rule(**call, backend=any_backend).output
    (grad,) = torch.autograd.grad(output.square().sum(), call["log_decay"])
    assert 0 < grad.abs().max() < 1e-14


def test_weak_decay_after_a_strong_one_keeps_its_precision(any_backend, device):
    shape = Shape(B=1, T=32, H=1, K=16, V=16, J=2)
    call = make_call(Variant("key"), shape, dtype=torch.float32, device=device, requires_grad=False)
    call["log_decay"][:, ::8] = -1000.0
    call["log_decay"][:, 1::8] = -1e-3
    double = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    double["initial_state"] = type(call["initial_state"])(call["initial_state"].W.double())
    truth = switching_delta_rule(**double, backend="reference").output
    found = switching_delta_rule(**call, backend=any_backend).output
    rounded = get_backend(any_backend).operand_bits(torch.float32)  # of matrix products
    assert ((found - truth).norm() / truth.norm()) < (2.0**-rounded if rounded else 1e-6)


def test_very_many_tokens(backend, device):
    T = 50_000 if (backend, device) == ("blocked", "cpu") else 200_000  # which takes half a minute there
    half = T // 2
    call = make_call(
        Variant("key", key_temporal=True, query_temporal=True),
        Shape(B=1, T=T, H=1, K=16, V=16, J=2) if device != "cpu" else Shape(B=1, T=T, H=1, K=4, V=4, J=2),
        device=device,
        initial_state=False,
        requires_grad=False,
    )
    whole = switching_delta_rule(**call, return_state=True, backend=backend)
    assert whole.output.isfinite().all()
    parts, state = [], None
    for tokens in (slice(0, half + 7), slice(half + 7, T)):
        part = {k: v[:, tokens] if isinstance(v, torch.Tensor) else v for k, v in call.items()}
        out = switching_delta_rule(**part, initial_state=state, return_state=True, backend=backend)
        parts.append(out.output)
        state = out.state
    for found, expected in ((torch.cat(parts, 1), whole.output), (state.W, whole.state.W)):
        if get_backend(backend).operand_bits(torch.float32):
            assert (found - expected).norm() < 2e-3 * expected.norm()
        else:
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
