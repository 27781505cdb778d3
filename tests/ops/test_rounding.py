"""The roundings by which kernels are measured: independent draws, of the right size, and none where none is needed."""

import torch

from swila.testing import VARIANTS, Shape, make_call
from swila.testing.checks import evaluate_rounded, exact, round_to


def draw(x, bits, seed):
    return round_to(x, bits, torch.Generator().manual_seed(seed))


def test_errors_are_uniform_within_half_a_unit_and_independent():
    x = torch.rand(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 2 + 0.5
    errors = [(draw(x, 8, seed) - x) * 2**8 for seed in (1, 2)]
    for error in errors:
        assert error.abs().max() <= 0.5 + 1e-9
        assert abs(error.mean()) < 0.005
        assert abs(error.square().mean() - 1 / 12) < 0.001
    assert abs((errors[0] * errors[1]).mean()) < 0.001
    assert torch.equal(draw(x, 8, 1), draw(x, 8, 1))


def test_what_fits_stays():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16().double()
    x[0] = 0
    assert torch.equal(draw(x, 8, 1), x)
    assert not torch.equal(draw(x, 7, 1), x)


def test_a_single_draw_may_be_near_zero():
    """Why there are several: over long sequences the errors of all gradients go up and down together, many times."""
    call = make_call(VARIANTS["plain"], Shape(B=1, T=400, H=1, K=16, V=16, J=3))
    truth = exact(call)["d k"]
    errors = [(evaluate_rounded(call, 16, seed=seed)["d k"] - truth).norm() for seed in range(4)]
    assert len(set(errors)) == 4
    assert max(errors) > 1.5 * min(errors)
