"""Which backends take a call, calls that they take, and how near their results have to be to what they should be."""

from dataclasses import replace

import torch

from swila import switching_delta_rule
from swila.ops.backends import all_backends, get_backend, why_not
from swila.testing import Shape, Variant, check_backend, make_call, problem_of


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


def assert_broken_values_spread(call, backend, name):
    """Put NaN at one place of an argument: where the token loop's results are then NaN, the backend's are too."""
    expected, found = (_results_with(call, name, float("nan"), each) for each in ("reference", backend))
    for part, theirs in expected.items():
        missed = theirs.isnan() & found[part].isfinite()
        assert not missed.any(), f"{missed.sum()} of {theirs.isnan().sum()} values of {part}"
    assert any(theirs.isnan().any() for theirs in expected.values()), "nothing is NaN in the token loop"


def assert_infinite_logits_are_seen_or_large(call, backend, name):
    """Put infinity at one place: results that the token loop has as NaN are NaN, or those of a very large logit."""
    expected, found = (_results_with(call, name, float("inf"), each) for each in ("reference", backend))
    large = _results_with(call, name, 1e30, "reference")
    for part, theirs in expected.items():
        missed = theirs.isnan() & found[part].isfinite()
        assert not theirs.isnan().any() or missed.sum() in (0, theirs.isnan().sum()), f"some of {part}"
        if missed.any():
            torch.testing.assert_close(found[part][missed], large[part][missed], rtol=2e-2, atol=2e-2)


def _results_with(call, name, value, backend):
    """Results of a call with a value at one place of an argument."""
    changed = call[name].detach().clone()
    changed[(0, changed.shape[1] // 2, *[-1] * (changed.ndim - 2))] = value
    call = {key: x.detach() if isinstance(x, torch.Tensor) else x for key, x in call.items()} | {name: changed}
    out = switching_delta_rule(**call, return_state=True, routing_stats=True, backend=backend)
    parts = {"output": out.output, **out.state._asdict(), **out.stats._asdict()}
    return {part: t for part, t in parts.items() if t is not None}


def assert_right(call, backend, **options):
    """The results of a call and its gradients are as near to float64 as those of the token loop."""
    wrong = [check for check in check_backend(call, backend, **options) if not check.ok]
    assert not wrong, wrong
