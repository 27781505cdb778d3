"""The specification itself: against the equations written out in scalars, and its first and second derivatives."""

import math
from dataclasses import replace

import pytest
import torch
from served import on_cpu

from swila import SwitchingState, switching_delta_rule
from swila.testing import VARIANTS, Shape, Variant, make_call
from swila.testing.checks import leaves, results

TINY = Shape(B=1, T=4, H=1, K=2, V=2, J=2)


def scalars(call):
    """Design equations in plain Python numbers: one loop per index, no tensor operation."""
    value = {name: t.detach().tolist() for name, t in leaves(call).items()}
    B, T, H, K = call["q"].shape
    J, V = call["beta"].shape[3:]
    out = torch.empty(B, T, H, V, dtype=torch.float64)
    finals = torch.empty(B, H, J, V, K, dtype=torch.float64)
    decay = call.get("log_decay")
    for b in range(B):
        for h in range(H):
            for d in range(V):
                w = [list(value["initial_W"][b][h][j][d]) for j in range(J)]
                r = [value["initial_r"][b][h][j][d] if "initial_r" in value else 1 / J for j in range(J)]
                rho = [value["initial_rho"][b][h][j][d] if "initial_rho" in value else 1 / J for j in range(J)]
                for t in range(T):
                    q, k = value["q"][b][t][h], value["k"][b][t][h]
                    pi_k = softmax([value["key_logits"][b][t][h][j][d] for j in range(J)])
                    pi_q = softmax([value["query_logits"][b][t][h][j][d] for j in range(J)])
                    alpha = [[1.0] * K for _ in range(J)]
                    if decay is not None:
                        full = decay.detach().expand(B, T, H, J, V, K)[b, t, h, :, d].exp()
                        alpha = full.tolist()
                    gated = [[a * x for a, x in zip(alpha[j], w[j], strict=True)] for j in range(J)]
                    seen = gated if call["decay_order"] == "pre" else w
                    delta = [value["v"][b][t][h][d] - dot(k, seen[j]) for j in range(J)]
                    g = value["key_gate"][b][t][h][d] if "key_gate" in value else 1.0
                    p = [(1 - g) * r[j] + g * pi_k[j] for j in range(J)]
                    joint = [p[j] * math.exp(-0.5 * delta[j] ** 2) for j in range(J)]
                    r = [x / sum(joint) if call["normalize"] else x for x in joint]
                    step = [value["beta"][b][t][h][j][d] * r[j] * delta[j] for j in range(J)]
                    w = [[x + step[j] * y for x, y in zip(gated[j], k, strict=True)] for j in range(J)]
                    g = value["query_gate"][b][t][h][d] if "query_gate" in value else 1.0
                    rho = [(1 - g) * rho[j] + g * pi_q[j] for j in range(J)]
                    out[b, t, h, d] = sum(rho[j] * dot(q, w[j]) for j in range(J))
                finals[b, h, :, d] = torch.tensor(w, dtype=torch.float64)
    return out, finals


def softmax(x):
    e = [math.exp(y - max(x)) for y in x]
    return [y / sum(e) for y in e]


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("name", VARIANTS)
def test_equations(name):
    call = make_call(VARIANTS[name], Shape(B=2, T=6, H=2, K=3, V=2, J=3), dtype=torch.float64)
    out = switching_delta_rule(**call, return_state=True, backend="reference")
    expected, state = scalars(call)
    torch.testing.assert_close(out.output, expected, atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(out.state.W, state, atol=1e-13, rtol=1e-13)


def as_function(call, backend):
    """The operation as a function of its differentiable tensors, for gradcheck."""
    names = list(leaves(call))
    options = {"decay_order": call["decay_order"], "normalize": call["normalize"]}

    def function(*tensors):
        given = dict(zip(names, tensors, strict=True))
        state = SwitchingState(*(given.pop(f"initial_{part}", None) for part in ("W", "r", "rho")))
        out = switching_delta_rule(
            **given, **options, initial_state=state, return_state=True, routing_stats=True, backend=backend
        )
        return tuple(results(out).values())

    return function, tuple(leaves(call).values())


@pytest.mark.parametrize("name", VARIANTS)
def test_gradcheck(name):
    function, tensors = as_function(make_call(VARIANTS[name], TINY, dtype=torch.float64), "reference")
    assert torch.autograd.gradcheck(function, tensors)


@pytest.mark.parametrize("variant", [Variant(), Variant("key", key_temporal=True, query_temporal=True)])
def test_differentiable_twice(variant):
    shape = Shape(B=1, T=3, H=1, K=2, V=1, J=2)
    function, tensors = as_function(make_call(variant, shape, dtype=torch.float64), "reference")
    assert torch.autograd.gradgradcheck(function, tensors)


OTHERS = [name for name in on_cpu() if name != "reference"]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", VARIANTS)
def test_gradcheck_of_other_backends(other, name):
    function, tensors = as_function(make_call(VARIANTS[name], TINY, dtype=torch.float64), other)
    assert torch.autograd.gradcheck(function, tensors)


def test_second_derivative_of_other_backends_is_refused(backend, device):
    call = make_call(shape=replace(TINY, K=16, V=16), device=device)
    loss = switching_delta_rule(**call, backend=backend).output.sum()
    (dq,) = torch.autograd.grad(loss, call["q"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiable once.*backend='reference'"):
        dq.sum().backward()
