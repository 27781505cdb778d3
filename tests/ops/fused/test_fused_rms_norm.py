"""RMS norms by kernels are their twins in torch, with every gradient."""

import pytest
import torch
from against_twin import check
from torch.testing import assert_close

import swila.ops.fused.rms_norm as module
from swila.ops.fused.choice import use_fused
from swila.ops.fused.rms_norm import add_rms_norm, rms_norm, rms_norm_reference

EPS = 1e-2  # large enough to matter
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def kernels():
    with use_fused(True):
        yield


def drawn(*shape, dtype=torch.float32, device="cpu", seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def add_twin(x, y, weight):
    total = x + y
    return total, rms_norm_reference(total, weight, EPS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 64), (2, 100), (70, 16), (1, 7), (3, 1030)], ids=str)
def test_norm(shape, dtype, device):
    x, weight = drawn(*shape, dtype=dtype, device=device), drawn(shape[-1], dtype=dtype, device=device, seed=1)
    check(lambda x, w: rms_norm(x, w, EPS), lambda x, w: rms_norm_reference(x, w, EPS), [x, weight])


def test_widest(device):
    x, weight = drawn(2, module.LARGEST, device=device), drawn(module.LARGEST, device=device, seed=1)
    check(lambda x, w: rms_norm(x, w, EPS), lambda x, w: rms_norm_reference(x, w, EPS), [x, weight])
    wider = drawn(1, module.LARGEST + 1, device=device)
    assert not module.norm_serves(wider, wider[0])
    assert_close(rms_norm(wider, wider[0], EPS), rms_norm_reference(wider, wider[0], EPS))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_gate(activation, dtype, device):
    x, weight, gate = (
        drawn(*s, dtype=dtype, device=device, seed=i) for i, s in enumerate([(3, 4, 40), (40,), (3, 4, 40)])
    )
    check(
        lambda x, w, g: rms_norm(x, w, EPS, g, activation),
        lambda x, w, g: rms_norm_reference(x, w, EPS, g, activation),
        [x, weight, 3 * gate],
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 48), (9, 16), (3, 600)], ids=str)
def test_sum_and_norm(shape, dtype, device):
    x, y = (drawn(*shape, dtype=dtype, device=device, seed=i) for i in (0, 1))
    weight = drawn(shape[-1], dtype=dtype, device=device, seed=2)
    # the sum is rounded before its norm
    check(lambda x, y, w: add_rms_norm(x, y, w, EPS), add_twin, [x, y, weight], roundings=4)


def test_dtypes_may_differ(device):
    """As under autocast: weights and residual stream in float32, and the rest in half precision."""
    x, y = drawn(6, 32, device=device), drawn(6, 32, dtype=torch.bfloat16, device=device, seed=1)
    weight = drawn(32, device=device, seed=2)
    check(lambda x, y, w: add_rms_norm(x, y, w, EPS), add_twin, [x, y, weight])
    check(lambda y, w: rms_norm(y, w, EPS), lambda y, w: rms_norm_reference(y, w, EPS), [y, weight])
    check(lambda y, w, x: rms_norm(y, w, EPS, x), lambda y, w, x: rms_norm_reference(y, w, EPS, x), [y, weight, x])
    assert rms_norm(x, weight, EPS, dtype=torch.float16).dtype == torch.float16


def test_strided_rows_and_gradients(device):
    """Halves of a tensor, a transposed one, and gradients that are views or expanded."""
    both, weight = drawn(5, 7, 96, device=device), drawn(48, device=device, seed=1)
    for x in (both[..., :48], both[..., 48:], both[:, 3, ::2], both[..., :48].transpose(0, 1)):
        check(lambda x, w: rms_norm(x, w, EPS), lambda x, w: rms_norm_reference(x, w, EPS), [x, weight])
        check(lambda x, y, w: add_rms_norm(x, y, w, EPS), add_twin, [x, x.flip(0), weight])
        given = x.detach().requires_grad_()
        found, expected = (
            torch.autograd.grad(f(given, weight, EPS).sum(), given)[0] for f in (rms_norm, rms_norm_reference)
        )
        assert_close(found, expected)
        gradient = drawn(48, *x.shape[:-1], device=device).movedim(0, -1)
        found, expected = (
            torch.autograd.grad(f(given, weight, EPS), given, gradient)[0] for f in (rms_norm, rms_norm_reference)
        )
        assert_close(found, expected)


def test_a_gate_that_is_part_of_a_product(device):
    """Its heads are next to each other, its tokens further apart."""
    product = drawn(2, 3, 100, device=device)
    x, weight = drawn(2, 3, 4, 16, device=device, seed=1), drawn(16, device=device, seed=2)
    for gate in (product[..., 30:94].unflatten(-1, (4, 16)), product[..., :96:6].unsqueeze(2).expand(2, 3, 4, 16)):
        check(lambda x, w, g: rms_norm(x, w, EPS, g), lambda x, w, g: rms_norm_reference(x, w, EPS, g),
              [x, weight, gate])  # fmt: skip


@pytest.mark.parametrize("rows", [3, 4, 13])
def test_more_rows_than_programs(rows, device, monkeypatch):
    monkeypatch.setattr(module, "PROGRAMS", 2)
    x, weight = drawn(rows, 1000, device=device), drawn(1000, device=device, seed=1)  # two rows in a tile
    check(lambda x, w: rms_norm(x, w, EPS), lambda x, w: rms_norm_reference(x, w, EPS), [x, weight])


def test_no_rows(device):
    x, weight = drawn(0, 8, device=device).requires_grad_(), drawn(8, device=device).requires_grad_()
    total, normed = add_rms_norm(x, x, weight, EPS)
    assert (total.shape, normed.shape) == ((0, 8), (0, 8))
    gradients = torch.autograd.grad((total + normed + rms_norm(x, weight, EPS)).sum(), (x, weight))
    assert gradients[0].shape == (0, 8)
    assert (gradients[1] == 0).all()


@pytest.mark.unpoisoned
def test_compiles(device):
    x, y, gate = (drawn(3, 5, 24, device=device, seed=i) for i in range(3))
    weight = drawn(24, device=device, seed=3)
    check(add_rms_norm_at_eps, add_twin, [x, y, weight], compiled=True)
    check(lambda x, w, g: rms_norm(x, w, EPS, g), lambda x, w, g: rms_norm_reference(x, w, EPS, g), [x, weight, gate],
          compiled=True)  # fmt: skip


def add_rms_norm_at_eps(x, y, weight):
    return add_rms_norm(x, y, weight, EPS)


@pytest.mark.unpoisoned
def test_operators_are_registered_properly(device):
    x, weight = drawn(3, 24, device=device), drawn(24, device=device, seed=1)
    ops = torch.ops.swila
    torch.library.opcheck(ops.rms_norm.default, (x, weight, x, "silu", EPS, torch.bfloat16, False))
    torch.library.opcheck(ops.add_rms_norm.default, (x, x.bfloat16(), weight, EPS, torch.float32))
    torch.library.opcheck(ops.rms_norm_backward.default, (x, weight, x, "sigmoid", EPS, x, x))
    torch.library.opcheck(ops.rms_norm_backward.default, (x, weight, None, "silu", EPS, x, None))


def test_arguments_are_checked(device):
    x, weight = drawn(3, 24, device=device), drawn(24, device=device)
    with pytest.raises(ValueError, match="activation must be 'silu' or 'sigmoid', got 'relu'"):
        rms_norm(x, weight, EPS, x, "relu")
    with pytest.raises(ValueError, match=r"gate must have the shape of x, \[3, 24\], got \[24\]"):
        rms_norm(x, weight, EPS, x[0])
    with pytest.raises(ValueError, match=r"y must have the shape of x, \[3, 24\], got \[1, 24\]"):
        add_rms_norm(x, x[:1], weight, EPS)


def test_other_tensors_are_left_to_the_twin(device):
    x, weight = drawn(3, 24, dtype=torch.float64, device=device), drawn(24, dtype=torch.float64, device=device)
    assert not module.norm_serves(x, weight)
    assert_close(rms_norm(x, weight, EPS), rms_norm_reference(x, weight, EPS), rtol=0, atol=0)
    with use_fused(False):
        assert not module.norm_serves(x.float(), weight.float())
