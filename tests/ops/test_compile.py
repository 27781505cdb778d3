"""Under torch.compile: one graph, forward and backward, any length; and the operators obey torch.library's rules."""

import shutil
from dataclasses import replace

import pytest
import torch
from served import on_cpu
from torch._dynamo.utils import counters

from swila import switching_delta_rule, switching_delta_rule_step
from swila.ops import backends, library
from swila.ops.backends import choose_backend, get_backend, usable_backends
from swila.ops.call import Inputs, Options, Problem
from swila.testing import VARIANTS, Shape, make_call
from swila.testing.checks import leaves, results

pytestmark = pytest.mark.unpoisoned
COMPILER = "inductor" if shutil.which("c++") or shutil.which("g++") else "aot_eager"


def run(call, backend):
    out = switching_delta_rule(**call, return_state=True, routing_stats=True, backend=backend)
    return [t * 2 for t in results(out).values()]


@pytest.mark.parametrize("name", [*on_cpu(), "auto"])
@pytest.mark.parametrize("variant", ["plain", "gated-temporal"])
def test_fullgraph_with_dynamic_length(name, variant):
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=COMPILER)
    for T in (40, 41, 100, 65):
        call = make_call(VARIANTS[variant], Shape(B=2, T=T, H=2, K=8, V=4, J=3))
        inputs = list(leaves(call).values())
        eager, traced = run(call, name), compiled(call, name)
        given = [torch.autograd.grad([t.sum() for t in out], inputs, allow_unused=True) for out in (eager, traced)]
        for a, b in zip([*eager, *given[0]], [*traced, *given[1]], strict=True):
            torch.testing.assert_close(a, b)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("name", on_cpu())
def test_permuted_inputs(name):
    """Strides of results and gradients are those the tracer was told, whatever the inputs' are."""
    torch._dynamo.reset()
    call = make_call(VARIANTS["temporal"], Shape(B=1, T=40, H=2, K=8, V=4, J=3))
    call["beta"] = call["beta"].detach().mT.contiguous().mT.requires_grad_()
    call["q"] = call["q"].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    state = call["initial_state"]
    call["initial_state"] = state._replace(W=state.W.detach().mT.contiguous().mT.requires_grad_())
    inputs = list(leaves(call).values())
    compiled = torch.compile(run, fullgraph=True, backend=COMPILER)
    given = [torch.autograd.grad([t.sum() for t in f(call, name)], inputs, allow_unused=True) for f in (run, compiled)]
    for a, b in zip(*given, strict=True):
        torch.testing.assert_close(a, b)


def test_fullgraph_packed_and_step():
    torch._dynamo.reset()
    call = make_call(VARIANTS["gated-temporal"], lengths=[5, 40, 3])
    compiled = torch.compile(run, fullgraph=True, backend=COMPILER)
    for a, b in zip(run(call, "blocked"), compiled(call, "blocked"), strict=True):
        torch.testing.assert_close(a, b)
    token = make_call(VARIANTS["gated-temporal"], Shape(T=1))
    step = torch.compile(lambda x: switching_delta_rule_step(**x).output, fullgraph=True, backend=COMPILER)
    torch.testing.assert_close(step(token), switching_delta_rule_step(**token).output)


def test_traced_auto_is_bound_to_what_is_usable():
    """Graphs are cached on disk: another machine's choice of backends must not be found in them."""
    assert library.auto_name() == "auto:" + ",".join(usable_backends())
    steps = [name for name in usable_backends() if get_backend(name).step is not None]
    assert library._auto_step() == "auto:" + ",".join(steps)


@pytest.mark.parametrize("name", ["plain", "gated-temporal"])
def test_a_step_in_place(name):
    """The state is written over the old one, compiled or not, and nothing else is written to."""
    states, outputs = [], []

    def step(call):
        return switching_delta_rule_step(**call, inplace=True).output

    for run in (step, torch.compile(step, fullgraph=True, backend=COMPILER)):
        call = make_call(VARIANTS[name], Shape(T=1), initial_state=True, requires_grad=False)
        before = {key: t.clone() for key, t in call.items() if isinstance(t, torch.Tensor)}
        old = [None if part is None else part.clone() for part in call["initial_state"]]
        outputs.append(run(call))
        states.append([part for part in call["initial_state"] if part is not None])
        assert not torch.equal(states[-1][0], old[0])
        assert all(torch.equal(call[key], t) for key, t in before.items())
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*states)
    x = Inputs(*(make_call()[name] for name in ("q", "k", "v", "beta", "key_logits", "query_logits")))
    problem = Problem.of(x, Options(), needs_grad=False)
    assert choose_backend("auto:blocked,reference", problem).name == "blocked"


@pytest.mark.parametrize("name", ["auto", "blocked"])
def test_bad_calls_are_refused_while_they_are_traced(name):
    """The ValueError of the check comes in torch's own error."""
    torch._dynamo.reset()
    call = make_call(shape=Shape(B=2, T=8, H=2, K=4, V=3, J=2), requires_grad=False) | {"backend": name}
    compiled = torch.compile(lambda call: switching_delta_rule(**call).output, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"k must be \[B, T, H, K\] = \[2, 8, 2, 4\], got shape \[2, 8, 2, 5\]"):
        compiled(call | {"k": torch.zeros(2, 8, 2, 5)})
    with pytest.raises(Exception, match="decay_order must be 'pre' or 'post', got 'middle'"):
        compiled(call | {"decay_order": "middle"})


@pytest.mark.parametrize("inplace", [False, True])
def test_bad_values_are_refused_by_a_compiled_step(inplace):
    torch._dynamo.reset()
    call = make_call(shape=Shape(T=1), requires_grad=False)
    call["beta"] = torch.full_like(call["beta"], 1.5)
    step = torch.compile(lambda x: switching_delta_rule_step(**x, inplace=inplace).output, backend="eager")
    with pytest.raises(ValueError, match=r"beta must have values within \[0, 1\]"):
        step(call)


@pytest.mark.parametrize("gradients", [False, True])
def test_what_the_backward_needs_is_kept_only_for_it(gradients, monkeypatch):
    asked = []

    def forward(x, options, save):
        asked.append(save)
        return get_backend("blocked").forward(x, options, save)

    monkeypatch.setattr(backends, "_registered", {})
    backends.register_backend(replace(get_backend("blocked"), name="watched", forward=forward))
    switching_delta_rule(**make_call(requires_grad=gradients), backend="watched")
    with torch.no_grad():
        switching_delta_rule(**make_call(), backend="watched")
    assert asked == [gradients, False]


def test_no_gradient_keeps_nothing():
    call = make_call(requires_grad=False)
    x = Inputs(*(call[name] for name in ("q", "k", "v", "beta", "key_logits", "query_logits")))
    assert len(torch.ops.swila.switching_delta_rule(*x, *Options(), False, "blocked", "")) == 1
    assert library.traced(x, Options(), "blocked").output.grad_fn is None


@pytest.mark.parametrize("variant", ["plain", "gated-temporal"])
@pytest.mark.parametrize("name", on_cpu())
def test_opcheck(name, variant):
    call = make_call(VARIANTS[variant], Shape(B=1, T=40, H=1, K=3, V=2, J=2))
    inputs = leaves(call)
    x = Inputs(**{field: inputs.get(field, inputs.get(f"initial_{field}")) for field in Inputs._fields})
    torch.library.opcheck(
        torch.ops.swila.switching_delta_rule.default,
        (*x, *Options(return_state=True, routing_stats=True), True, name, ""),
    )


def test_the_step_in_place_names_what_it_writes_to():
    arguments = torch.ops.swila.switching_delta_rule_step_.default._schema.arguments
    assert [each.name for each in arguments if each.alias_info and each.alias_info.is_write] == ["W", "r", "rho"]
