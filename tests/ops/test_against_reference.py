"""Every backend against the specification: forward, state, statistics and every gradient."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import (
    assert_broken_values_spread,
    assert_infinite_logits_are_seen_or_large,
    assert_near,
    fitting_call,
)

from swila import switching_delta_rule
from swila.ops.backends import get_backend, why_not
from swila.testing import VARIANTS, Shape, Variant, check_backend, make_call, problem_of

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def assert_right(call, backend):
    if reason := why_not(get_backend(backend), problem_of(call)):
        pytest.skip(reason)
    wrong = [check for check in check_backend(call, backend) if not check.ok]
    assert not wrong, wrong


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(backend, device, name, dtype):
    assert_right(make_call(VARIANTS[name], dtype=dtype, device=device), backend)


@pytest.mark.parametrize("T", [1, 2, 15, 17, 31, 32, 33, 63, 65, 1000])
@pytest.mark.parametrize("name", ["plain", "gated-temporal", "post-decay-value-temporal"])
def test_lengths(backend, device, name, T):
    shape = Shape(B=1, T=T, H=2, K=8, V=4, J=3)
    assert_right(fitting_call(backend, device, VARIANTS[name], shape), backend)


@pytest.mark.parametrize("J", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize(("K", "V"), [(1, 1), (5, 3), (3, 12), (16, 1)])
@pytest.mark.parametrize("name", ["temporal", "gated", "gated-value"])
def test_sizes(backend, device, name, K, V, J):
    call = fitting_call(backend, device, VARIANTS[name], Shape(B=2, T=37, H=3, K=K, V=V, J=J))
    assert_right(call, backend)


@pytest.mark.parametrize("name", VARIANTS)
def test_packed(backend, device, name):
    assert_right(fitting_call(backend, device, VARIANTS[name], lengths=[3, 70, 1, 32, 33]), backend)


@pytest.mark.parametrize("name", ["plain", "gated-temporal"])
def test_without_initial_state(backend, device, name):
    assert_right(make_call(VARIANTS[name], initial_state=False, device=device), backend)


def test_only_one_side_temporal(backend, device):
    for variant in (Variant("head", key_temporal=True), Variant("value", query_temporal=True)):
        assert_right(fitting_call(backend, device, variant), backend)


def test_strided_inputs(backend, device):
    """Views out of a fused projection, and a time axis that is not the second in memory."""
    call = fitting_call(backend, device, VARIANTS["gated"])
    fused = torch.cat([call["q"], call["k"]], -1).detach()
    call["q"], call["k"] = (x.requires_grad_() for x in fused.chunk(2, -1))
    call["v"] = call["v"].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    assert not call["q"].is_contiguous()
    assert not call["v"].is_contiguous()
    assert_right(call, backend)


@pytest.mark.parametrize("which", ["output", "W", "key_usage", "key_entropy", "query_usage", "query_entropy"])
def test_gradient_of_one_result(backend, device, which):
    """Most losses depend on one of the results alone."""
    call = fitting_call(backend, device, VARIANTS["temporal"], Shape(B=1, T=5, H=1))
    leaves = [call["k"], call["key_logits"], call["query_logits"]]
    found = []
    for name in (backend, "reference"):
        results = switching_delta_rule(**call, return_state=True, routing_stats=True, backend=name)
        named = {"output": results.output, "W": results.state.W, **results.stats._asdict()}
        found.append(torch.autograd.grad(named[which].square().sum(), leaves, materialize_grads=True))
    for ours, theirs in zip(*found, strict=True):
        assert_near(ours, theirs)


@pytest.mark.parametrize("name", ["temporal", "gated", "gated-value"])
def test_strided_states_and_their_gradients(backend, device, name):
    """A cache may keep its states in any layout, and a loss may send back gradients in any."""
    call = fitting_call(backend, device, VARIANTS[name])
    expected = switching_delta_rule(**call, return_state=True, backend="reference")
    state = type(call["initial_state"])(
        *(None if t is None else t.detach().mT.contiguous().mT.requires_grad_() for t in call["initial_state"])
    )
    found = switching_delta_rule(**call | {"initial_state": state}, return_state=True, backend=backend)
    weight = torch.randn_like(found.state.W.mT.contiguous()).mT
    for ours, theirs in zip(
        torch.autograd.grad(found.state.W, [call["k"], state.W], weight),
        torch.autograd.grad(expected.state.W, [call["k"], call["initial_state"].W], weight),
        strict=True,
    ):
        assert_near(ours, theirs)


@pytest.mark.parametrize("name", ["temporal", "gated-temporal"])
def test_many_short_sequences_beside_a_long_one(backend, device, name):
    call = fitting_call(backend, device, VARIANTS[name], lengths=[1] * 20 + [3] * 5 + [90] + [20, 33])
    assert_right(call, backend)


def test_ruled_out_mixtures(backend, device):
    """A logit of -inf takes a mixture out: no NaN, and nothing reaches it."""
    call = fitting_call(backend, device, VARIANTS["gated"])
    for logits in ("key_logits", "query_logits"):
        masked = call[logits].detach().clone()
        masked[:, :, :, 0] = -math.inf
        call[logits] = masked.requires_grad_()
    assert_right(call, backend)


def test_responsibilities_of_zero_in_the_initial_state(backend, device):
    call = fitting_call(backend, device, VARIANTS["temporal"])
    one_hot = torch.zeros_like(call["initial_state"].r)
    one_hot[:, :, 1] = 1
    call["initial_state"] = call["initial_state"]._replace(r=one_hot.requires_grad_())
    assert_right(call, backend)


BROKEN = [
    (name, argument)
    for name in ("plain", "gated-temporal", "unnormalized", "unnormalized-gated-temporal", "post-decay-value-temporal")
    for argument in ("q", "k", "v", "beta", "key_logits", "query_logits", "log_decay", "key_gate", "query_gate")
    if ("temporal" in name or "gate" not in argument)
    and (name not in ("plain", "unnormalized") or argument != "log_decay")
]


@pytest.mark.parametrize(("name", "argument"), BROKEN)
def test_broken_values_are_seen_in_the_results(backend, device, name, argument):
    call = make_call(VARIANTS[name], Shape(B=1, T=40, H=2, K=16, V=16, J=3), device=device, requires_grad=False)
    assert_broken_values_spread(call, backend, argument)


@pytest.mark.parametrize("argument", ["key_logits", "query_logits"])
@pytest.mark.parametrize("name", ["plain", "temporal", "gated"])
def test_infinite_logits_are_seen_or_taken_for_large_ones(backend, device, name, argument):
    call = make_call(VARIANTS[name], Shape(B=1, T=40, H=2, K=16, V=16, J=3), device=device, requires_grad=False)
    assert_infinite_logits_are_seen_or_large(call, backend, argument)


def test_long_sequence_in_float32(backend, device):
    call = make_call(VARIANTS["gated-temporal"], Shape(B=1, T=2048, H=1, K=8, V=4, J=2), device=device)
    assert_right(call, backend)


variants = st.builds(
    Variant,
    decay=st.sampled_from([None, "key", "value", "head"]),
    decay_order=st.sampled_from(["pre", "post"]),
    key_temporal=st.booleans(),
    query_temporal=st.booleans(),
    normalize=st.booleans(),
)
shapes = st.builds(
    Shape,
    B=st.integers(1, 3),
    T=st.integers(1, 80),
    H=st.integers(1, 3),
    K=st.integers(1, 9),
    V=st.integers(1, 9),
    J=st.integers(1, 6),
)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    variant=variants,
    shape=shapes,
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
    lengths=st.none() | st.lists(st.integers(1, 40), min_size=1, max_size=5),
    initial_state=st.booleans(),
)
def test_any_call(backend, device, variant, shape, dtype, seed, lengths, initial_state):
    if dtype in (torch.bfloat16, torch.float16):
        shape = replace(shape, T=min(shape.T, 40))
    call = make_call(
        variant, shape, dtype=dtype, seed=seed, lengths=lengths, initial_state=initial_state, device=device
    )
    if why_not(get_backend(backend), problem_of(call)) is None:
        assert_right(call, backend)
