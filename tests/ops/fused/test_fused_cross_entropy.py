"""Cross-entropy and its gradient by the kernel are those of torch."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import swila.ops.fused.cross_entropy as module
from swila.models.language.cross_entropy import linear_cross_entropy
from swila.ops.fused.choice import use_fused
from swila.ops.fused.cross_entropy import cross_entropy_reference, cross_entropy_with_gradient


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 64)  # so that rows have several
    with use_fused(True):
        yield


def problem(vocabulary, dtype=torch.float32, device="cpu", rows=7, scale=3.0):
    generator = torch.Generator().manual_seed(0)
    z = (scale * torch.randn(rows, vocabulary, generator=generator)).to(device, dtype)
    target = torch.randint(vocabulary, (rows,), generator=generator)
    target[2::3] = -100
    return z, target.to(device)


def exact(z, target):
    wide = z.double().requires_grad_()
    loss = F.cross_entropy(wide, target, reduction="none", ignore_index=-100)
    return loss.detach(), torch.autograd.grad(loss.sum(), wide)[0]


@pytest.mark.parametrize("function", [cross_entropy_with_gradient, cross_entropy_reference])
@pytest.mark.parametrize("vocabulary", [1, 50, 64, 200])
def test_loss_and_gradient(vocabulary, function, device):
    z, target = problem(vocabulary, device=device)
    loss, dz = exact(z, target)
    for out in (torch.empty_like(z), torch.empty_like(z, dtype=torch.bfloat16), None, z):
        found = function(z, target.int() if out is None else target, out)
        assert found.dtype == torch.float32
        assert_close(found.double(), loss, rtol=1e-5, atol=1e-5)
        if out is not None:
            error = 1e-5 if out.dtype == torch.float32 else 2**-7
            assert_close(out.double(), dz, rtol=error, atol=1e-6)
            assert (out[target == -100] == 0).all()


@pytest.mark.parametrize("function", [cross_entropy_with_gradient, cross_entropy_reference])
def test_strides_and_half_precision(function, device):
    z, target = problem(200, dtype=torch.bfloat16, device=device)
    wide = torch.full((7, 300), float("nan"), dtype=torch.bfloat16, device=device)
    wide[:, 50:250] = z
    loss, dz = exact(z, target)
    out = torch.full((7, 210), 7.0, dtype=torch.bfloat16, device=device)
    assert_close(function(wide[:, 50:250], target, out[:, 4:204]).double(), loss, rtol=1e-5, atol=1e-5)
    assert_close(out[:, 4:204].double(), dz, rtol=2**-7, atol=1e-6)
    assert (out[:, :4] == 7).all()
    assert (out[:, 204:] == 7).all()
    assert_close(function(z.t().contiguous().t(), target).double(), loss, rtol=1e-5, atol=1e-5)
    assert function(z[:0], target[:0], z[:0]).shape == (0,)


def test_extremes(device):
    """Large logits, blocks of -inf, and labels that do not exist."""
    z, target = problem(200, device=device, scale=1e30)
    z[:, :70] = float("-inf")
    target = torch.where(target >= 0, target.clamp_min(70), target)
    loss, dz = exact(z, target)
    out = torch.empty_like(z)
    assert_close(cross_entropy_with_gradient(z, target, out).double(), loss, rtol=1e-5, atol=1e-5)
    assert_close(out.double(), dz, rtol=1e-5, atol=1e-6)
    target[0], target[1], target[3] = 200, -1, -101
    found = cross_entropy_with_gradient(z, target)
    assert found[[0, 1, 3]].isnan().all()
    assert found[[2, 4, 5, 6]].isfinite().all()


@pytest.mark.parametrize("chunk_size", [4, 37, None])
def test_the_loss_of_a_head(chunk_size, device):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 8, generator=generator).to(device).requires_grad_() for n in (37, 150))
    target = torch.randint(150, (37,), generator=generator).to(device)
    target[::5] = -100
    found, results = {}, []
    for fused in (True, False):
        with use_fused(fused):
            loss = linear_cross_entropy(x, weight, target, chunk_size)
            found[fused] = (loss, *torch.autograd.grad(3 * loss, (x, weight)))
            with torch.no_grad():
                results.append(linear_cross_entropy(x, weight, target, chunk_size))
    assert_close(found[True], found[False], rtol=1e-4, atol=1e-5)
    assert_close(results[0], results[1])
    assert_close(results[0], found[True][0])
