"""The second product of a low-rank projection against its twin in torch."""

import pytest
import torch
from torch.testing import assert_close

from swila.ops.fused.choice import use_fused
from swila.ops.fused.expand import expand, expand_in_torch


def make(device, dtype=torch.float32, tokens=(2, 70), R=5, N=130):
    """Activations that are a part of wider rows, and a matrix."""
    generator = torch.Generator().manual_seed(0)
    low, up = (torch.randn(shape, generator=generator).to(device, dtype) for shape in ((*tokens, R + 7), (N, R)))
    return low[..., 3 : 3 + R], up


@pytest.mark.parametrize("sizes", [{}, {"tokens": (1, 1), "R": 16}, {"tokens": (300,), "R": 64, "N": 8}, {"R": 128}])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_is_its_twin(sizes, sigmoid, device):
    low, up = make(device, **sizes)
    with use_fused(True):
        found = expand(low, up, sigmoid)
    expected = expand_in_torch(low.double(), up.double(), sigmoid)
    assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, device):
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("the interpreter has no product of bfloat16")
    low, up = make(device, dtype, R=64)
    with use_fused(True):
        found = expand(low, up.float(), sigmoid=True)
    assert found.dtype == dtype
    exact = expand_in_torch(low.double(), up.double(), sigmoid=True)
    assert (found.double() - exact).abs().max() <= torch.finfo(dtype).eps


@pytest.mark.parametrize("sigmoid", [False, True])
def test_gradients_are_those_of_the_twin(sigmoid, device):
    low, up = make(device)
    for which in (low, up):
        which.requires_grad_()
        with use_fused(True):
            found = torch.autograd.grad(expand(low, up, sigmoid).sum(), which)
        assert_close(found, torch.autograd.grad(expand_in_torch(low, up, sigmoid).sum(), which))
        which.requires_grad_(False)


def test_a_rank_too_large_for_the_kernel(device):
    low, up = make(device, R=129)
    with use_fused(True):
        assert_close(expand(low, up), expand_in_torch(low, up), rtol=0, atol=0)


@pytest.mark.unpoisoned
def test_compiled_in_one_graph(device):
    torch._dynamo.reset()
    low, up = make(device)
    with use_fused(True):
        found = torch.compile(expand, fullgraph=True, backend="aot_eager")(low, up, True)
        assert_close(found, expand(low, up, True), rtol=0, atol=0)
