"""Calls that are alike are checked once; anything that differs is looked at again."""

from dataclasses import replace

import pytest
import torch

from swila import SwitchingState, register_backend, switching_delta_rule, switching_delta_rule_step
from swila.ops import backends, choice
from swila.ops.backends import get_backend
from swila.ops.call import Inputs, Options
from swila.testing import VARIANTS, Shape, make_call

pytestmark = pytest.mark.unpoisoned


@pytest.fixture
def asked(monkeypatch):
    """The problems that a backend named ``watched`` is asked about."""
    monkeypatch.setattr(backends, "_registered", {})
    monkeypatch.setattr(choice, "_chosen", {})
    problems = []
    register_backend(replace(get_backend("blocked"), name="watched", refuses=problems.append, differentiable=None))
    return problems


def run(call, **options):
    return switching_delta_rule(**call, **options, backend="watched").output


def test_a_call_is_described_once(asked):
    call = make_call(VARIANTS["gated-temporal"])
    run(call).sum().backward()
    assert len(asked) == 1
    run(call)
    run(make_call(VARIANTS["gated-temporal"], seed=1))
    assert len(asked) == 1


def test_in_place_steps_are_described_once(asked):
    call = make_call(VARIANTS["temporal"], Shape(T=1), requires_grad=False)
    state = SwitchingState(*(None if t is None else t.clone() for t in call["initial_state"]))
    for _ in range(2):
        switching_delta_rule_step(**call | {"initial_state": state}, backend="watched", inplace=True)
    assert len(asked) == 1


def test_whatever_differs_is_looked_at_again(asked):
    shape = Shape(B=1, T=6, H=1, K=4, V=4, J=2)
    call = make_call(VARIANTS["temporal"], shape, initial_state=False)
    others = [
        lambda: run(call),
        lambda: run(make_call(VARIANTS["temporal"], replace(shape, T=7), initial_state=False)),
        lambda: run(make_call(VARIANTS["temporal"], replace(shape, K=5), initial_state=False)),
        lambda: run(make_call(VARIANTS["temporal"], shape, initial_state=False, dtype=torch.float64)),
        lambda: run(call | {"beta": call["beta"].bfloat16()}),
        lambda: run(call | {"cu_seqlens": torch.tensor([0, 6])}),
        lambda: run(call | {"cu_seqlens": torch.tensor([0, 6], dtype=torch.int32)}),
        lambda: run(call | {"key_gate": None}),
        lambda: run(call | {"query_gate": None}),
        lambda: run(call, return_state=True),
        lambda: run(call, routing_stats=True),
        lambda: run(call | {"normalize": False}),
        lambda: run(call | {"decay_order": "post"}),
        lambda: run(make_call(VARIANTS["temporal"], shape, initial_state=True)),
    ]
    for count, other in enumerate(others, 1):
        other()
        assert len(asked) == count
        other()
        assert len(asked) == count
    with torch.no_grad():
        run(call)
    assert len(asked) == len(others) + 1
    switching_delta_rule_step(
        **{name: x[:, :1] for name, x in call.items() if isinstance(x, torch.Tensor)}, backend="watched"
    )
    assert len(asked) == len(others) + 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"normalize": 1}, "normalize must be True or False, got 1"),
        ({"k": [0.0]}, "k must be a torch.Tensor, got list"),
        ({"beta": torch.rand(2, 2)}, "beta must be"),
        ({"backend": ["watched"]}, "backend must be 'auto' or one of"),
    ],
)
def test_a_wrong_call_is_refused_after_a_right_one(asked, change, told):
    call = make_call() | {"backend": "watched"}
    switching_delta_rule(**call)
    for _ in range(2):
        with pytest.raises(ValueError, match=told):
            switching_delta_rule(**call | change)


def test_a_sparse_tensor_is_refused_after_a_dense_one(asked):
    call = make_call(requires_grad=False)
    run(call)
    with pytest.raises(ValueError, match="v must be a dense"):
        run(call | {"v": call["v"].to_sparse()})


def test_a_new_backend_is_asked(asked):
    call = make_call(requires_grad=False)
    switching_delta_rule(**call)
    assert len(asked) == 1  # ahead of the others
    later = []
    register_backend(replace(get_backend("blocked"), name="later", refuses=later.append))
    switching_delta_rule(**call)
    assert (len(asked), len(later)) == (2, 0)
    backends.unregister_backend("watched")
    switching_delta_rule(**call)
    assert (len(asked), len(later)) == (2, 1)


def test_memory_is_bounded(asked, monkeypatch):
    monkeypatch.setattr(choice, "_MOST", 3)
    for T in range(1, 9):
        run(make_call(shape=Shape(T=T), requires_grad=False))
        assert len(choice._chosen) <= 3
    assert len(asked) == 8


def test_a_graph_of_another_machine(asked):
    """A backend that is not usable here is refused by the operator too: a saved graph is not traced again."""
    call = make_call(requires_grad=False, initial_state=False)
    x = Inputs(*(call[name] for name in ("q", "k", "v", "beta", "key_logits", "query_logits")))
    register_backend(replace(get_backend("blocked"), name="absent", unusable=lambda: "no such device"))
    with pytest.raises(ValueError, match="backend 'absent' cannot run here: no such device"):
        torch.ops.swila.switching_delta_rule(*x, *Options(), False, "absent", "")


def test_a_step_that_the_backend_refuses_is_not_traced(asked):
    register_backend(replace(get_backend("blocked"), name="picky", refuses=lambda problem: "K must be 64"))
    call = make_call(shape=Shape(T=1), requires_grad=False)
    step = torch.compile(
        lambda x: switching_delta_rule_step(**x, inplace=True, backend="picky").output, backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match="backend 'picky' cannot serve this call: K must be 64"):
        step(call)


def test_a_choice_for_a_sequence_is_not_that_of_a_step():
    """``auto`` takes other backends for steps than for sequences of one token."""
    call = make_call(shape=Shape(T=1), requires_grad=False)
    x = Inputs(*(call[name] for name in ("q", "k", "v", "beta", "key_logits", "query_logits")))
    whole = choice.serving_backend(x, Options(), "auto", False)
    step = choice.serving_backend(x, Options(), "auto", False, step=True)
    assert whole.step is None
    assert step.step is not None
