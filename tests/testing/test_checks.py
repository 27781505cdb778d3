"""``swila.testing`` must be able to say no: backends with small errors of every kind are found out."""

import math
from dataclasses import replace

import pytest
import torch

from swila.ops.backends import backend_names, get_backend, register_backend, unregister_backend
from swila.testing import VARIANTS, Check, Shape, check_backend, examination, examine, make_call
from swila.testing.checks import evaluate_rounded

BF16, F32 = torch.bfloat16, torch.float32
SHAPE = Shape(B=1, T=40, H=2, K=16, V=16, J=4)


@pytest.fixture
def flawed():
    """Makes a backend of ``blocked`` whose results or gradients are changed by a function, and returns its name."""

    def make(results=lambda x, options, found: found, gradients=lambda given: given, **changes):
        blocked = get_backend("blocked")

        def forward(x, options, save):
            found, saved = blocked.forward(x, options, save)
            return results(x, options, found), saved

        def backward(*arguments):
            return gradients(blocked.backward(*arguments))

        register_backend(replace(blocked, name="flawed", forward=forward, backward=backward, **changes))
        return "flawed"

    yield make
    unregister_backend("flawed")


def wrong(call, backend, **options):
    return {check.name for check in check_backend(call, backend, **options) if not check.ok}


@pytest.mark.parametrize("dtype", [F32, BF16, torch.float64], ids=str)
def test_a_right_backend_is_right(flawed, dtype):
    assert not wrong(make_call(VARIANTS["gated-temporal"], SHAPE, dtype=dtype), flawed())


@pytest.mark.parametrize("name", ["output", "W", "key_usage", "query_entropy"])
def test_a_thousandth_in_a_result_is_found_in_float32(flawed, name):
    backend = flawed(results=lambda x, options, found: found._replace(**{name: getattr(found, name) * 1.001}))
    assert wrong(make_call(VARIANTS["temporal"], SHAPE), backend) == {name}


@pytest.mark.parametrize(("dtype", "factor"), [(F32, 1.001), (BF16, 1.02)], ids=str)
@pytest.mark.parametrize(
    "name", ["q", "k", "v", "beta", "key_logits", "query_logits", "log_decay", "key_gate", "W", "r"]
)
def test_an_error_in_one_gradient_is_found(flawed, name, dtype, factor):
    """One part in a thousand in float32; in bfloat16 two in a hundred, as its own roundings are up to half of one."""
    call = make_call(VARIANTS["gated-temporal"], SHAPE, dtype=dtype)
    backend = flawed(gradients=lambda given: given | {name: given[name] * factor})
    assert wrong(call, backend) == {f"d {name}" if name not in ("W", "r") else f"d initial_{name}"}


def test_roundings_of_double_precision_are_found(flawed):
    backend = flawed(results=lambda x, options, found: found._replace(output=found.output * (1 + 1e-11)))
    assert wrong(make_call(VARIANTS["temporal"], SHAPE, dtype=torch.float64), backend) == {"output"}


def test_a_single_wrong_token_is_found(flawed):
    def last_token(x, options, found):
        output = found.output.clone()
        output[:, -1] *= 1.01
        return found._replace(output=output)

    assert wrong(make_call(VARIANTS["plain"], SHAPE), flawed(results=last_token)) == {"output"}


def test_nan_is_wrong(flawed):
    backend = flawed(results=lambda x, options, found: found._replace(output=found.output * math.nan))
    assert "output" in wrong(make_call(VARIANTS["plain"], SHAPE), backend, gradients=False)
    assert not Check("output", math.nan, 1.0).ok
    assert Check("output", math.nan, 1.0).severity == math.inf


@pytest.mark.parametrize(("dtype", "bits", "factor"), [(BF16, 8, 1.02), (F32, 16, 1.001)], ids=str)
def test_roundings_of_matrix_units_allow_for_no_more_than_they_explain(flawed, dtype, bits, factor):
    call = make_call(VARIANTS["temporal"], SHAPE, dtype=dtype)
    backend = flawed(gradients=lambda given: given | {"k": given["k"] * factor}, operand_bits=lambda dtype: bits)
    assert wrong(call, backend) == {"d k"}


@pytest.mark.parametrize("name", ["output", "W", "rho", "key_usage", "key_entropy", "query_usage"])
def test_every_result_has_a_part_in_the_gradients(flawed, name):
    """A backward that leaves out what comes back through one of the results is found."""
    right = get_backend(flawed())

    def backward(x, options, saved, grads):
        return right.backward(x, options, saved, grads._replace(**{name: None}))

    register_backend(replace(right, backward=backward))
    assert wrong(make_call(VARIANTS["temporal"], SHAPE), "flawed")


def test_the_rounded_loop_is_no_backend_afterwards():
    before = backend_names()
    call = make_call(shape=SHAPE)
    evaluate_rounded(call, bits=8)
    assert backend_names() == before
    with pytest.raises(ValueError, match="q must be"):
        evaluate_rounded(call | {"q": call["q"][0]}, bits=8)
    assert backend_names() == before


def test_without_statistics(flawed):
    names = {check.name for check in check_backend(make_call(shape=SHAPE), flawed(), statistics=False)}
    assert {"output", "W", "d q", "d initial_W"} <= names
    assert not names & {"key_usage", "key_entropy", "query_usage", "query_entropy"}


PATHS = {
    "packed": lambda x, options: x.cu_seqlens is not None,
    "without statistics": lambda x, options: not options.routing_stats and x.beta.shape[3] <= 4,
    "many mixtures": lambda x, options: not options.routing_stats and x.beta.shape[3] > 4,
    "a decay by head": lambda x, options: x.log_decay is not None and x.log_decay.shape[-2:] == (1, 1),
    "post-decay": lambda x, options: options.decay_order == "post",
    "unnormalised": lambda x, options: not options.normalize,
}


@pytest.mark.parametrize("path", PATHS)
def test_an_examination_takes_every_path(flawed, monkeypatch, path):
    """An error on one of them alone is found."""

    def results(x, options, found):
        return found._replace(output=found.output * 1.001) if PATHS[path](x, options) else found

    names = ["plain", "post-decay-value-temporal", "unnormalized-gated-temporal"]
    monkeypatch.setattr(examination, "VARIANTS", {name: VARIANTS[name] for name in names})
    found = examine(get_backend(flawed(results)), "cpu", F32)
    assert found.failures
    assert not found.crashes
    assert not found.checks[0][1].ok  # the worst first


def test_crashes_are_failures(flawed, monkeypatch):
    monkeypatch.setattr(examination, "VARIANTS", {"plain": VARIANTS["plain"]})

    def crash(x, options, found):
        raise RuntimeError("illegal memory access")

    found = examine(get_backend(flawed(crash)), "cpu", F32)
    assert found.failures == len(found.crashes) == found.calls
    assert not found.checks


def test_calls():
    """Seeds differ, and packed sequences have the lengths that were asked for."""
    first, again, other = (make_call(shape=SHAPE, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first["k"], again["k"])
    assert not torch.equal(first["k"], other["k"])
    packed = make_call(shape=SHAPE, lengths=[3, 5, 1])
    assert packed["cu_seqlens"].tolist() == [0, 3, 8, 9]
    assert packed["q"].shape[:2] == (1, 9)
    assert packed["initial_state"].W.shape[0] == 3
    assert first["v"].std().item() == pytest.approx(2, rel=0.1)
    assert first["initial_state"].W.std().item() == pytest.approx(0.5, rel=0.1)
    decay = make_call(VARIANTS["gated"], SHAPE)["log_decay"].exp()
    assert 0.1 < decay.min() < 0.6 < decay.mean() < decay.max() < 1
