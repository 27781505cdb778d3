"""The fused convolution against its twin in torch: results and gradients of everything it reads."""

import pytest
import torch
from torch.testing import assert_close

import swila.ops.fused.short_conv as module
from swila.ops.fused.choice import use_fused
from swila.ops.fused.short_conv import _Tiles, l2_norm, short_conv, short_conv_in_torch

CASES = {
    "plain": {},
    "heads": {"head_dim": 8},
    "odd heads": {"head_dim": 3, "C": 6, "T": 5},
    "wide": {"C": 72, "T": 3},
    "long": {"C": 5, "T": 130, "width": 4},
    "width 2": {"width": 2, "bias": True},
    "width 8": {"width": 8, "head_dim": 4, "T": 5, "state": True},
    "linear": {"silu": False, "bias": True},
    "linear heads": {"silu": False, "head_dim": 4},
    "state": {"state": True, "head_dim": 8, "bias": True},
    "short": {"state": True, "T": 1, "B": 3},
    "no tokens": {"state": True, "T": 0, "bias": True},
    "streams": {"streams": 3, "bias": True, "state": True, "head_dim": 4},
    "packed": {"lengths": [4, 1, 2, 60, 6], "head_dim": 8},
    "packed state": {"lengths": [1, 1, 3, 2, 9, 70], "state": True, "bias": True, "streams": 2},
    "one sequence": {"lengths": [7], "state": True},
}


def make(
    device, dtype=torch.float32, B=2, T=19, C=8, width=4, head_dim=None, silu=True, bias=False, state=False, streams=1,
    lengths=None,
):  # fmt: skip
    """Arguments; x is a part of wider rows, as a layer has it."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()

    B, T, N = (B, T, B) if lengths is None else (1, sum(lengths), len(lengths))
    call = {"rows": normal(B, T, streams * C + 9), "weight": normal(C, width)}
    call["bias"] = normal(C) if bias else None
    call["state"] = normal(N, width - 1, streams * C) if state else None
    call["cu_seqlens"] = None if lengths is None else torch.tensor([0, *lengths], device=device).cumsum(0)
    return call, {"silu": silu, "head_dim": head_dim}


def evaluate(function, call, options, dtype=None):
    """Results and gradients, of the arguments in another dtype."""
    call = {
        k: v if v is None or k == "cu_seqlens" or dtype is None else v.detach().to(dtype).requires_grad_()
        for k, v in call.items()
    }
    rows = call["rows"]
    y = function(rows[..., 3:-6], call["weight"], call["bias"], call["state"], call["cu_seqlens"], **options)
    inputs = {k: v for k, v in call.items() if v is not None and v.requires_grad}
    weight = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).sin().view(y.shape).bfloat16().to(y)
    return {"y": y} | dict(zip(inputs, torch.autograd.grad(y, inputs.values(), weight), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_is_its_twin(case, device):
    call, options = make(device, **CASES[case])
    expected = evaluate(short_conv_in_torch, call, options, torch.float64)
    with use_fused(True):
        found = evaluate(short_conv, call, options)
    assert list(found) == list(expected)
    for name, value in found.items():
        assert_close(value, expected[name].float(), rtol=2e-5, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("case", ["width 8", "state", "streams", "packed", "packed state", "long"])
def test_programs_with_several_tiles(case, device, monkeypatch):
    """As with many tokens: one program for each group of channels, with tiles of a few tokens."""
    for kind in ("_FORWARD", "_ACTIVATION", "_CONVOLUTION"):
        monkeypatch.setattr(module, kind, _Tiles(elements=32, programs=1))
    test_is_its_twin(case, device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["heads", "packed state"])
def test_half_precision_is_as_near_as_the_twin(case, dtype, device):
    call, options = make(device, dtype, **CASES[case])
    exact = evaluate(short_conv_in_torch, call, options, torch.float64)
    twin = evaluate(short_conv_in_torch, call, options)
    with use_fused(True):
        found = evaluate(short_conv, call, options)
    for name, value in found.items():
        assert value.dtype == dtype
        error, allowed = ((v.double() - exact[name]).norm() / exact[name].norm() for v in (value, twin[name]))
        assert error <= 1.5 * allowed + torch.finfo(dtype).eps, name


def test_filters_in_full_precision(device):
    """As under autocast: the input is in half precision, the parameters are not."""
    call, options = make(device, torch.float32, head_dim=4, bias=True)
    call["rows"] = call["rows"].detach().bfloat16().requires_grad_()
    exact = evaluate(short_conv_in_torch, call, options, torch.float64)
    with use_fused(True):
        found = evaluate(short_conv, call, options)
    assert found["y"].dtype == torch.bfloat16
    assert found["weight"].dtype == found["bias"].dtype == torch.float32
    assert_close(found["weight"].double(), exact["weight"], rtol=1e-4, atol=1e-4)  # summed before any rounding


def test_rows_that_are_no_view(device):
    """Any strides will do."""
    x = torch.randn(2, 8, 5, device=device).mT
    weight = torch.randn(8, 3, device=device)
    with use_fused(True):
        assert_close(short_conv(x, weight, head_dim=4), short_conv_in_torch(x, weight, head_dim=4))


def test_a_filter_too_wide_for_the_kernels(device):
    x, weight = torch.randn(1, 12, 3, device=device), torch.randn(3, 9, device=device)
    with use_fused(True):
        assert_close(short_conv(x, weight), short_conv_in_torch(x, weight))


def test_float64_has_no_kernel(device):
    call, options = make(device, torch.float64, head_dim=4)
    with use_fused(True):
        found = evaluate(short_conv, call, options)
    for name, value in evaluate(short_conv_in_torch, call, options).items():
        assert_close(found[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("case", ["heads", "packed state"])
@pytest.mark.unpoisoned
def test_compiled_in_one_graph(case, device):
    torch._dynamo.reset()
    call, options = make(device, **CASES[case])
    with use_fused(True):
        compiled = torch.compile(short_conv, fullgraph=True, backend="aot_eager")
        found, expected = (evaluate(f, call, options) for f in (compiled, short_conv))
    for name, value in found.items():
        assert_close(value, expected[name], rtol=0, atol=0)


def test_keeps_its_input_alone(device):
    call, options = make(device, head_dim=8)
    kept = []
    with use_fused(True), torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        short_conv(call["rows"][..., 3:-6], call["weight"], **options)
    assert {t.untyped_storage().data_ptr() for t in kept} == {
        call[name].untyped_storage().data_ptr() for name in ("rows", "weight")
    }


def test_repeats_bit_for_bit(device):
    call, options = make(device, **CASES["packed state"])
    with use_fused(True):
        first, second = (evaluate(short_conv, call, options) for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name])


def test_is_differentiable_once(device):
    call, options = make(device, head_dim=8)
    with use_fused(True):
        y = short_conv(call["rows"][..., 3:-6], call["weight"], **options)
    (first,) = torch.autograd.grad(y.square().sum(), call["weight"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiable once; .* use use_fused\(False\)"):
        first.sum().backward()


def test_vectors_of_unit_length():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert_close(l2_norm(x, 0.0)[0], torch.tensor([0.6, 0.8]))
    assert_close(l2_norm(x)[1], torch.zeros(2))
