"""The one-token step: which backend takes it, with and without gradients, and in place."""

from dataclasses import replace

import pytest
import torch

from swila import SwitchingState, switching_delta_rule, switching_delta_rule_step
from swila.ops import backends
from swila.ops.backends import choose_backend, get_backend, register_backend
from swila.testing import VARIANTS, Shape, make_call, problem_of

SHAPE = Shape(B=2, T=1, H=2, K=5, V=4, J=3)


def token(variant="gated-temporal", **options):
    return make_call(VARIANTS[variant], SHAPE, **{"requires_grad": False, **options})


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(backends, "_registered", {})


def test_auto_takes_a_backend_with_a_step():
    problem = problem_of(token())
    assert choose_backend("auto", problem).name in ("numba", "blocked")
    assert choose_backend("auto", problem, step=True).name == "reference"


def test_a_step_without_gradients_is_not_taken_where_they_are_needed(registry):
    steps = []

    def step(x, options):
        steps.append(x.q.shape)
        with torch.no_grad():
            return get_backend("reference").step(x, options)

    register_backend(replace(get_backend("blocked"), name="decoder", step=step, step_has_gradients=False))
    call = token(requires_grad=True)
    out = switching_delta_rule_step(**call, backend="decoder")
    expected = switching_delta_rule(**call, return_state=True, backend="reference")
    assert not steps
    for ours, theirs in zip(
        torch.autograd.grad(out.output.sum() + out.state.W.sum(), [call["k"], call["v"]]),
        torch.autograd.grad(expected.output.sum() + expected.state.W.sum(), [call["k"], call["v"]]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        switching_delta_rule_step(**call, backend="decoder")
    assert len(steps) == 1


@pytest.mark.parametrize("name", ["reference", "blocked"])
@pytest.mark.parametrize("variant", ["plain", "gated-temporal"])
def test_in_place(name, variant):
    call = token(variant)
    state = SwitchingState(*(None if t is None else t.clone() for t in call["initial_state"]))
    expected = switching_delta_rule_step(**call, backend=name)
    found = switching_delta_rule_step(**call | {"initial_state": state}, backend=name, inplace=True)
    assert torch.equal(found.output, expected.output)
    for mine, returned, theirs in zip(state, found.state, expected.state, strict=True):
        assert mine is returned
        assert mine is None or torch.equal(mine, theirs)
    assert not torch.equal(state.W, call["initial_state"].W)


@pytest.mark.parametrize("name", ["reference", "blocked", "numba"])
@pytest.mark.parametrize("variant", ["plain", "gated-temporal"])
def test_in_place_for_some_rows(name, variant):
    call = token(variant)
    state = SwitchingState(*(None if t is None else t.clone() for t in call["initial_state"]))
    expected = switching_delta_rule_step(**call, backend=name)
    alive = torch.tensor([False, True])
    found = switching_delta_rule_step(**call | {"initial_state": state}, backend=name, inplace=True, alive=alive)
    assert torch.equal(found.output[1], expected.output[1])
    for mine, before, after in zip(state, call["initial_state"], expected.state, strict=True):
        if mine is not None:
            assert torch.equal(mine[0], before[0])
            assert torch.equal(mine[1], after[1])


def test_a_way_in_place_that_knows_no_rows_is_not_asked_for_some(registry):
    def inplace(x, options):
        raise AssertionError

    register_backend(replace(get_backend("reference"), name="decoder", step_inplace=inplace))
    switching_delta_rule_step(**token(), backend="decoder", inplace=True, alive=torch.tensor([False, True]))


@pytest.mark.parametrize(
    ("alive", "inplace", "message"),
    [
        (torch.ones(2, dtype=torch.bool), False, "alive must be None with inplace=False"),
        (torch.ones(3, dtype=torch.bool), True, r"alive must be bool and \[B\] = \[2\], got torch.bool of shape \[3\]"),
        (torch.ones(2), True, r"alive must be bool and \[B\] = \[2\], got torch.float32"),
        ([True, True], True, r"alive must be bool and \[B\] = \[2\], got list"),
        (torch.ones(2, 2, dtype=torch.bool)[:, 0], True, "alive must be contiguous"),
    ],
)
def test_rows_that_cannot_be_chosen(alive, inplace, message):
    with pytest.raises(ValueError, match=message):
        switching_delta_rule_step(**token(), inplace=inplace, alive=alive)


@pytest.mark.parametrize("operation", [switching_delta_rule, switching_delta_rule_step])
def test_defaults(operation):
    """Errors at the decayed state, responsibilities with their denominator."""
    call = {name: value for name, value in token().items() if name not in ("decay_order", "normalize")}
    expected = operation(**call, decay_order="pre", normalize=True).output
    assert torch.equal(operation(**call).output, expected)
    assert not torch.allclose(operation(**call, decay_order="post").output, expected)
    assert not torch.allclose(operation(**call, normalize=False).output, expected)


@pytest.mark.parametrize("part", ["W", "r", "rho"])
def test_in_place_of_a_state_with_strides(registry, part):
    """A way made for writing in place takes dense states alone; others are written to all the same."""
    taken = []

    def inplace(x, options):
        taken.append(x)
        return get_backend("reference").run_step_in_place(x, options)

    register_backend(replace(get_backend("reference"), name="decoder", step_inplace=inplace))
    call = token()
    expected = switching_delta_rule_step(**call, backend="reference").state
    state = SwitchingState(*(t.clone() for t in call["initial_state"]))
    strided = state._replace(**{part: getattr(state, part).mT.contiguous().mT})
    switching_delta_rule_step(**call | {"initial_state": strided}, backend="decoder", inplace=True)
    assert not taken
    for mine, theirs in zip(strided, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    switching_delta_rule_step(**call | {"initial_state": state}, backend="decoder", inplace=True)
    assert taken


def test_the_output_follows_q():
    call = token()
    with_time = switching_delta_rule_step(**call).output
    names = ("initial_state", "decay_order", "normalize")
    without = {name: value if name in names else value.squeeze(1) for name, value in call.items()}
    assert with_time.shape == (2, 1, 2, 4)
    assert torch.equal(switching_delta_rule_step(**without).output, with_time.squeeze(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initial_state": None}, "inplace must be False without a state to write to"),
        ({"return_state": False}, "inplace must be False without a state to write to"),
        ({"beta": torch.full((2, 1, 2, 3, 4), 1.5)}, r"beta must have values within \[0, 1\], got values from 1.5"),
        ({"v": torch.zeros(2, 1, 2, 4, requires_grad=True)}, "inplace must be False where gradients are needed"),
    ],
)
def test_what_cannot_be_done_in_place(changes, message):
    call = token()
    before = [t.clone() for t in call["initial_state"]]
    with pytest.raises(ValueError, match=message):
        switching_delta_rule_step(**call | changes, inplace=True)
    assert all(torch.equal(*pair) for pair in zip(call["initial_state"], before, strict=True))
