"""The operation on low-rank learning rates and logits: results and gradients are those of the expanded inputs."""

from dataclasses import replace

import pytest
import torch
from served import on_cpu
from torch.testing import assert_close

from swila import switching_delta_rule
from swila.ops.backends import get_backend, register_backend, unregister_backend
from swila.ops.fused.choice import use_fused
from swila.ops.low_rank import Factors, switching_delta_rule_low_rank
from swila.testing import VARIANTS, Shape, make_call
from swila.testing.checks import leaves, results

SHAPE = Shape(B=2, T=37, H=2, K=4, V=3, J=3)
WIDE = ("beta", "key_logits", "query_logits")


def make(variant="plain", shape=SHAPE, dtype=torch.float64, device="cpu", **options):
    """A call with activations, which are parts of wider rows as in a layer, and matrices."""
    call = make_call(VARIANTS[variant], shape, dtype=dtype, device=device, **options)
    B, T, H, J, V = call["beta"].shape
    for name in WIDE:
        call.pop(name)
    generator = torch.Generator().manual_seed(3)

    def normal(*size, scale=1.0):
        draw = torch.randn(size, generator=generator, dtype=torch.float64) * scale
        return draw.to(device, dtype).requires_grad_()

    rows, ranks = normal(B, T, 17), (4, 5, 3)
    up = Factors(*(normal(H * J * V, rank, scale=0.5) for rank in ranks))
    return call, rows, ranks, up


def parts(rows, ranks):
    return Factors(*rows[..., 2 : 2 + sum(ranks)].split(ranks, -1))


def low_rank(call, rows, ranks, up, backend, **options):
    return switching_delta_rule_low_rank(**call, low=parts(rows, ranks), up=up, backend=backend, **options)


def expanded(call, rows, ranks, up, backend, **options):
    """The same by torch and the operation itself."""
    shape = (call["v"].shape[2], -1, call["v"].shape[3])
    full = [(a @ b.T).unflatten(-1, shape) for a, b in zip(parts(rows, ranks), up, strict=True)]
    names = dict(zip(WIDE, (full[0].sigmoid(), *full[1:]), strict=True))
    return switching_delta_rule(**call, **names, backend=backend, **options)


def evaluate(function, call, rows, ranks, up, backend, **options):
    """Everything that is returned, and the gradients of a combination of it."""
    found = results(function(call, rows, ranks, up, backend, **options))
    state = call.get("initial_state") or ()
    inputs = {k: t for k, t in call.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    inputs |= {f"state {i}": t for i, t in enumerate(state) if t is not None}
    inputs |= {"rows": rows} | up._asdict()
    weights = [torch.linspace(-1, 1, t.numel(), device=t.device).sin().view(t.shape).to(t) for t in found.values()]
    grads = torch.autograd.grad(list(found.values()), list(inputs.values()), weights)
    return found | {f"d {name}": grad for name, grad in zip(inputs, grads, strict=True)}


def compare(found, expected, **tolerance):
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert_close(found[name], value, msg=lambda m, name=name: f"{name}: {m}", **tolerance)


@pytest.mark.parametrize("name", [name for name in on_cpu() if name != "reference"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_is_the_operation_on_expanded_inputs(variant, name):
    arguments = make(variant)
    options = {"return_state": True, "routing_stats": True}
    compare(*(evaluate(f, *arguments, name, **options) for f in (low_rank, expanded)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("initial_state", [True, False])
def test_packed(initial_state):
    arguments = make("gated-temporal", lengths=[5, 1, 34, 3], initial_state=initial_state)
    found, expected = (evaluate(f, *arguments, "auto", return_state=True) for f in (low_rank, expanded))
    compare(found, expected, rtol=1e-11, atol=1e-11)


def test_without_state_and_statistics():
    arguments = make("temporal", initial_state=False)
    compare(*(evaluate(f, *arguments, "auto") for f in (low_rank, expanded)), rtol=1e-11, atol=1e-11)


def test_a_backend_with_gradients_of_logits():
    """Its gradient of the learning rates is that of their logits already."""
    blocked = get_backend("blocked")

    def backward_of_logits(x, options, saved, grads):
        found = blocked.backward(x, options, saved, grads)
        return found | {"beta": found["beta"] * x.beta * (1 - x.beta)}

    register_backend(replace(blocked, name="of logits", differentiable=None, backward_of_logits=backward_of_logits))
    try:
        arguments = make("temporal")
        found, expected = evaluate(low_rank, *arguments, "of logits"), evaluate(expanded, *arguments, "blocked")
    finally:
        unregister_backend("of logits")
    compare(found, expected, rtol=1e-11, atol=1e-11)


def test_with_kernels_that_expand(device):
    """Products and sigmoids by the fused kernel, in float32."""
    arguments = make("temporal", Shape(B=2, T=21, H=2, K=16, V=16, J=2), dtype=torch.float32, device=device)
    with use_fused(True):
        found = evaluate(low_rank, *arguments, "auto", return_state=True)
    expected = evaluate(expanded, *arguments, "auto", return_state=True)
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 2e-3 * value.norm(), name


@pytest.mark.parametrize("variant", ["plain", "gated-temporal"])
@pytest.mark.parametrize("name", ["auto", "blocked"])
@pytest.mark.unpoisoned
def test_compiled_in_one_graph(variant, name):
    torch._dynamo.reset()
    arguments = make(variant)
    options = {"return_state": True, "routing_stats": True}
    compiled = torch.compile(low_rank, fullgraph=True, backend="aot_eager")
    compare(*(evaluate(f, *arguments, name, **options) for f in (compiled, expanded)), rtol=1e-11, atol=1e-11)


@pytest.mark.unpoisoned
def test_compiled_with_output_alone_and_any_length():
    torch._dynamo.reset()
    compiled = torch.compile(low_rank, fullgraph=True, dynamic=True, backend="aot_eager")
    for T in (33, 40):
        arguments = make("temporal", Shape(B=2, T=T, H=2, K=4, V=3, J=3), initial_state=False)
        compare(*(evaluate(f, *arguments, "auto") for f in (compiled, expanded)), rtol=1e-11, atol=1e-11)


def test_nothing_of_full_width_is_kept():
    call, rows, ranks, up = make("temporal", Shape(B=2, T=40, H=2, K=4, V=8, J=4))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        low_rank(call, rows, ranks, up, "blocked")
    full = 2 * 40 * 2 * 4 * 8
    tokens = [t for t in kept if t.numel() >= full and t.shape[:2] == (2, 40)]
    assert kept
    assert not tokens


def test_gradients_of_part_of_the_results():
    """A loss of the state alone, and one that depends on nothing but the statistics."""
    call, rows, ranks, up = make("temporal")
    for pick in (lambda out: out.state.W.square().sum(), lambda out: out.stats.key_usage.square().sum()):
        found, expected = (
            torch.autograd.grad(pick(f(call, rows, ranks, up, "auto", return_state=True, routing_stats=True)), up.beta)
            for f in (low_rank, expanded)
        )
        assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_without_gradients_it_is_the_operation():
    call, rows, ranks, up = make("gated")
    with torch.no_grad():
        compare(*(results(f(call, rows, ranks, up, "auto")) for f in (low_rank, expanded)), rtol=0, atol=0)


def test_matrices_in_full_precision():
    """As under autocast: activations in half precision, parameters not; gradients have the dtype of the parameters."""
    call, rows, ranks, up = make("plain", dtype=torch.bfloat16)
    up = Factors(*(t.detach().float().requires_grad_() for t in up))
    out = low_rank(call, rows, ranks, up, "auto").output
    grads = torch.autograd.grad(out.sum(), [rows, *up])
    assert out.dtype == torch.bfloat16
    assert [t.dtype for t in grads] == [torch.bfloat16] + [torch.float32] * 3


def test_second_derivatives_need_the_reference():
    call, rows, ranks, up = make("plain", Shape(B=1, T=3, H=1, K=2, V=2, J=2))

    def second(backend):
        out = low_rank(call, rows, ranks, up, backend).output
        (first,) = torch.autograd.grad(out.square().sum(), rows, create_graph=True)
        return torch.autograd.grad(first.square().sum(), rows)[0]

    assert second("reference").abs().sum() > 0
    with pytest.raises(RuntimeError, match=r"differentiable once; .* backend='reference'"):
        second("blocked")


def test_errors_are_those_of_the_operation():
    call, rows, ranks, up = make("plain")
    with pytest.raises(ValueError, match="key_logits must be"):
        low_rank(call, rows, ranks, up._replace(key=up.key[:-6]), "auto")
    with pytest.raises(ValueError, match="backend must be 'auto' or one of"):
        low_rank(call, rows, ranks, up, "none")
    assert leaves(call)  # the arguments are as they were
