"""Which backends take a call, calls that they take, and how near their results have to be to what they should be."""

from dataclasses import replace

import torch

from swila.ops.backends import all_backends, get_backend, why_not
from swila.testing import Shape, Variant, make_call, problem_of


def on_cpu():
    """Names of those that take tensors of the CPU, fastest first; on a machine with a GPU others are usable too."""
    return [backend.name for backend in all_backends() if why_not(backend, problem_of(make_call())) is None]


def fitting_call(backend, device, variant=Variant(), shape=Shape(), **options):  # noqa: B008
    """A call in float64, or where the backend does not take it one in float32 with K = V = 16, which kernels have."""
    call = make_call(variant, shape, dtype=torch.float64, device=device, **options)
    on_gpu = device != "cpu"  # where auto would say that float64 is slow
    if (backend == "auto" and not on_gpu) or (
        backend != "auto" and why_not(get_backend(backend), problem_of(call)) is None
    ):
        return call
    return make_call(variant, replace(shape, K=16, V=16), dtype=torch.float32, device=device, **options)


def assert_near(found, expected, exact=1e-11):
    """Equal up to ``exact`` in float64; in float32, where the recurrence lets roundings grow, near as a whole."""
    if expected.dtype == torch.float64:
        torch.testing.assert_close(found, expected, atol=exact, rtol=exact)
        return
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert (found - expected).norm() <= 2e-3 * expected.norm() + 1e-6, (found - expected).norm() / expected.norm()
