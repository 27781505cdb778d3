"""The state carries everything: split, packed and stepped runs give what one whole run gives, gradients too."""

import pytest
import torch
from served import assert_near, fitting_call, on_cpu

from swila import SwitchingState, switching_delta_rule, switching_delta_rule_step
from swila.ops.call import PER_TOKEN
from swila.testing import VARIANTS, Shape, make_call
from swila.testing.checks import leaves

SHAPE = Shape(B=2, T=70, H=2, K=5, V=4, J=3)


def cut(call, begin, end, **changes):
    """The same call on some of its tokens."""
    return {k: v[:, begin:end] if k in PER_TOKEN else v for k, v in call.items() if k != "cu_seqlens"} | changes


def assert_same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_near(a, b)


@pytest.mark.parametrize("variant", VARIANTS)
def test_split_is_whole(any_backend, device, variant):
    call = fitting_call(any_backend, device, VARIANTS[variant], SHAPE)
    inputs = list(leaves(call).values())
    whole = switching_delta_rule(**call, return_state=True, backend=any_backend)
    parts, state = [], call["initial_state"]
    for begin, end in ((0, 1), (1, 34), (34, 70)):
        part = switching_delta_rule(
            **cut(call, begin, end, initial_state=state), return_state=True, backend=any_backend
        )
        parts.append(part.output)
        state = part.state
    split = torch.cat(parts, 1)
    assert_same([split, *state], [whole.output, *whole.state])
    weights = [torch.randn_like(t) for t in (split, *state) if t is not None]
    given = [
        torch.autograd.grad([t for t in out if t is not None], inputs, weights)
        for out in ((split, *state), (whole.output, *whole.state))
    ]
    assert_same(*given)


@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_is_separate(any_backend, device, variant):
    lengths = [5, 40, 1, 33]
    call = fitting_call(any_backend, device, VARIANTS[variant], SHAPE, lengths=lengths)
    inputs = list(leaves(call).values())
    packed = switching_delta_rule(**call, return_state=True, backend=any_backend)
    outputs, states, begin = [], [], 0
    for i, length in enumerate(lengths):
        state = SwitchingState(*(None if t is None else t[i : i + 1] for t in call["initial_state"]))
        alone = switching_delta_rule(
            **cut(call, begin, begin + length, initial_state=state), return_state=True, backend=any_backend
        )
        outputs.append(alone.output)
        states.append(alone.state)
        begin += length
    separate = torch.cat(outputs, 1)
    final = [None if parts[0] is None else torch.cat(parts) for parts in zip(*states, strict=True)]
    assert_same([packed.output, *packed.state], [separate, *final])
    weights = [torch.randn_like(t) for t in (separate, *final) if t is not None]
    given = [
        torch.autograd.grad([t for t in out if t is not None], inputs, weights)
        for out in ((packed.output, *packed.state), (separate, *final))
    ]
    assert_same(*given)


def test_sequences_do_not_see_each_other(any_backend, device):
    call = fitting_call(any_backend, device, VARIANTS["gated-temporal"], SHAPE, lengths=[30, 40], initial_state=False)
    out = switching_delta_rule(**call, backend=any_backend).output
    (dv,) = torch.autograd.grad(out[:, 30:].sum(), call["v"])
    assert dv[:, :30].abs().max() == 0
    assert dv[:, 30:].abs().max() > 0


def test_nothing_sees_the_future(any_backend, device):
    call = fitting_call(any_backend, device, VARIANTS["gated-temporal"], SHAPE)
    out = switching_delta_rule(**call, backend=any_backend).output
    for grad in torch.autograd.grad(out[:, :40].sum(), [call[x] for x in PER_TOKEN]):
        assert grad[:, 40:].abs().max() == 0


@pytest.mark.parametrize("time_axis", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_are_whole(asked_for, device, variant, time_axis):
    shape = Shape(B=2, T=9, H=2, K=5, V=4, J=3)
    call = fitting_call(asked_for, device, VARIANTS[variant], shape, requires_grad=False)
    whole = switching_delta_rule(**call, return_state=True, backend="reference")
    state, outputs = call["initial_state"], []
    for t in range(9):
        token = cut(call, t, t + 1, initial_state=state)
        if not time_axis:
            token = {k: v.squeeze(1) if k in PER_TOKEN else v for k, v in token.items()}
        out = switching_delta_rule_step(**token, backend=asked_for)
        outputs.append(out.output if time_axis else out.output.unsqueeze(1))
        state = out.state
    assert_same([torch.cat(outputs, 1), *state], [whole.output, *whole.state])


def test_step_is_differentiable():
    call = make_call(VARIANTS["gated-temporal"], Shape(B=2, T=1, H=2, K=5, V=4, J=3), dtype=torch.float64)
    inputs = list(leaves(call).values())
    step, whole = switching_delta_rule_step(**call), switching_delta_rule(**call, return_state=True)
    given = [torch.autograd.grad(o.output.sum() + o.state.W.sum(), inputs, allow_unused=True) for o in (step, whole)]
    torch.testing.assert_close(given[0][0], given[1][0])
    torch.testing.assert_close(given[0][2], given[1][2])


def test_step_wants_one_token():
    with pytest.raises(ValueError, match=r"q must be one token, .* got shape \[2, 70, 2, 5\]"):
        switching_delta_rule_step(**make_call(shape=SHAPE))


def test_default_state_is_zero_and_uniform(any_backend, device):
    call = fitting_call(any_backend, device, VARIANTS["temporal"], SHAPE, initial_state=False)
    uniform = torch.full_like(call["beta"][:, 0], 1 / 3).detach()
    zero = uniform.new_zeros(*uniform.shape, call["k"].shape[-1])
    outputs = [
        switching_delta_rule(**call, initial_state=state, backend=any_backend).output
        for state in (None, SwitchingState(zero, uniform, uniform))
    ]
    assert_near(*outputs)


def test_state_is_full_precision_and_only_there_when_asked_for():
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        full = torch.float64 if dtype == torch.float64 else torch.float32
        for name in on_cpu():
            out = switching_delta_rule(**make_call(VARIANTS["temporal"], dtype=dtype), return_state=True, backend=name)
            assert out.output.dtype == dtype
            assert {t.dtype for t in out.state} == {full}
            assert out.stats is None
    assert switching_delta_rule(**make_call()).state is None
    plain = switching_delta_rule(**make_call(), return_state=True).state
    assert plain.r is None
    assert plain.rho is None


def test_statistics_are_means_over_tokens(any_backend, device):
    """With β = 0 and no state the errors are the values themselves, so the responsibilities are known."""
    call = fitting_call(any_backend, device, shape=SHAPE, initial_state=False)
    call["beta"] = torch.zeros_like(call["beta"])
    stats = switching_delta_rule(**call, routing_stats=True, backend=any_backend).stats
    for logits, usage, entropy in (
        (call["key_logits"], stats.key_usage, stats.key_entropy),
        (call["query_logits"], stats.query_usage, stats.query_entropy),
    ):
        p = logits.softmax(3)
        assert_near(usage, p.mean((0, 1)))
        assert_near(entropy, -(p * p.log()).sum(3).mean((0, 1)))


def test_gradients_of_the_initial_state_alone(any_backend, device):
    """As where a prompt is frozen and its state is trained."""
    call = make_call(VARIANTS["temporal"], Shape(T=5), device=device, requires_grad=False)
    state = [t.requires_grad_() for t in call["initial_state"]]
    found, expected = (
        torch.autograd.grad(switching_delta_rule(**call, backend=backend).output.sum(), state)
        for backend in (any_backend, "reference")
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
