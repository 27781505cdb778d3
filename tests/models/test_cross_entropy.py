"""The loss of a linear head in chunks is the loss of all logits."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from swila.models.language.cross_entropy import linear_cross_entropy

pytestmark = pytest.mark.usefixtures("on_the_device")


def problem(N=37, D=8, vocabulary=50, dtype=torch.float64):
    with torch.device("cpu"):  # the same numbers on every device
        generator = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(n, D, generator=generator, dtype=torch.float64) for n in (N, vocabulary))
        target = torch.randint(vocabulary, (N,), generator=generator)
    target[::5] = -100
    here = torch.get_default_device()
    x, weight = (t.to(here, dtype).requires_grad_() for t in (x, weight))
    return x, weight, target.to(here)


@pytest.mark.parametrize("chunk_size", [1, 8, 37, 100, None])
def test_loss_and_gradients(chunk_size):
    x, weight, target = problem()
    loss = linear_cross_entropy(x, weight, target, chunk_size)
    expected = F.cross_entropy(F.linear(x, weight), target, reduction="sum")
    assert_close(loss, expected)
    assert_close(torch.autograd.grad(3 * loss, (x, weight)), torch.autograd.grad(3 * expected, (x, weight)))


@pytest.mark.parametrize("frozen", ["x", "weight", "both"])
def test_what_needs_no_gradient_gets_none(frozen):
    x, weight, target = problem()
    if frozen in ("x", "both"):
        x = x.detach()
    if frozen in ("weight", "both"):
        weight = weight.detach()
    loss = linear_cross_entropy(x, weight, target, 8)
    wanted = [t for t in (x, weight) if t.requires_grad]
    assert loss.requires_grad == bool(wanted)
    expected = F.cross_entropy(F.linear(x, weight), target, reduction="sum")
    assert_close(loss, expected)
    if wanted:
        assert_close(torch.autograd.grad(loss, wanted), torch.autograd.grad(expected, wanted))


def test_bfloat16_has_a_loss_in_float32_and_gradients_as_good_as_the_usual():
    x, weight, target = problem(N=300, D=64, vocabulary=1000, dtype=torch.bfloat16)
    loss = linear_cross_entropy(x, weight, target, 50)
    assert loss.dtype == torch.float32
    logits = F.linear(x, weight)
    plain = torch.autograd.grad(F.cross_entropy(logits.float(), target, reduction="sum"), (x, weight))
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    exact = F.cross_entropy(F.linear(*wide), target, reduction="sum")
    assert_close(loss.double(), exact, rtol=1e-3, atol=0)
    gradients = torch.autograd.grad(loss, (x, weight))
    for found, usual, expected in zip(gradients, plain, torch.autograd.grad(exact, wide), strict=True):
        assert found.dtype == torch.bfloat16
        assert (found.double() - expected).norm() < 1.5 * (usual.double() - expected).norm()


def test_autocast_and_extremes(device):
    x, weight, target = problem(dtype=torch.float32)
    with torch.autocast(device, torch.bfloat16):
        loss = linear_cross_entropy(x, weight, target)
    assert_close(loss, F.cross_entropy(F.linear(x, weight), target, reduction="sum"), rtol=1e-2, atol=0)
    assert all(g.dtype == torch.float32 for g in torch.autograd.grad(loss, (x, weight)))
    far = linear_cross_entropy(1e4 * x, weight, target)
    assert far.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(far, (x, weight)))
    nothing = linear_cross_entropy(x, weight, torch.full_like(target, -100))
    assert nothing == 0
    assert all((g == 0).all() for g in torch.autograd.grad(nothing, (x, weight)))


def test_float16_gradients_do_not_overflow_as_sums():
    x, weight, target = problem(N=4000, D=4, vocabulary=3, dtype=torch.float16)
    target = torch.where(target >= 0, 1, target)
    x = (x.detach() + 30).requires_grad_()
    loss = linear_cross_entropy(x, weight, target) / len(x)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, (x, weight)))


@pytest.mark.unpoisoned
def test_compiles():
    x, weight, target = problem(dtype=torch.float32)
    torch.set_default_device(None)  # tracing does not know it
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager", dynamic=True)
    for N in (37, 20):
        loss = linear_cross_entropy(x[:N], weight, target[:N], 8)
        found = compiled(x[:N], weight, target[:N], 8)
        assert_close(found, loss)
        assert_close(torch.autograd.grad(found, (x, weight)), torch.autograd.grad(loss, (x, weight)))


def test_operator_is_registered_properly():
    x, weight, target = problem(dtype=torch.float32)
    torch.library.opcheck(torch.ops.swila.linear_cross_entropy.default, (x, weight, target, 8, True, True))
