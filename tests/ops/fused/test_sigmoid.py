"""The sigmoid of the kernels, beside torch in float64."""

import pytest
import torch
import triton
import triton.language as tl

from swila.ops.fused.sigmoid_kernels import sigmoid


@triton.jit
def write_sigmoid(x, y, N: tl.constexpr):
    """Write the sigmoid of N numbers."""
    at = tl.arange(0, N)
    tl.store(y + at, sigmoid(tl.load(x + at)))


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_of_any_number(device):
    inf, nan = torch.inf, torch.nan
    special = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 87.0, -87.0, 88.7, -88.7, 1e30, -1e30, inf, -inf, nan])
    x = torch.cat([torch.linspace(-86, 86, 1024 - len(special)), special]).to(device)
    y = torch.empty_like(x)
    write_sigmoid[(1,)](x, y, N=1024)
    exact = x.double().sigmoid()
    exact[exact < torch.finfo(torch.float32).tiny] = 0.0  # smaller numbers may be zero
    y[y < torch.finfo(torch.float32).tiny] = 0.0
    torch.testing.assert_close(y.double(), exact, rtol=2e-5, atol=0, equal_nan=True)
