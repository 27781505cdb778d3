"""Flash-linear-attention's kernels are compared with the specification before they are timed."""

import sys
from types import SimpleNamespace

import pytest
import torch

from swila.benchmarks import baselines
from swila.benchmarks.op import verdict
from swila.layers.delta_rule import delta_rule
from swila.ops.backends import get_backend
from swila.testing import VARIANTS, Shape


def baseline(wrong=None, decay=None):
    """An operation with flash-linear-attention's arguments, by our blocked algorithm; or one that is wrong."""

    def operation(q, k, v, beta, g=None):
        if wrong == "scale":
            q = 1.1 * q
        if wrong == "half the decay":
            g = 0.5 * g
        if wrong == "crash":
            raise RuntimeError("not on this GPU")
        if wrong == "gradient of k":
            k = 0.9 * k + 0.1 * k.detach()
        q = q * q.shape[-1] ** -0.5
        return delta_rule(q, k, v, beta, g, backend="blocked")[0]

    def inputs(name, shape, device):
        generator = torch.Generator().manual_seed(0)
        drawn = {key: torch.randn(shape.B, shape.T, shape.H, 16, generator=generator) for key in "qkv"}
        call = {key: torch.nn.functional.normalize(t, dim=-1).bfloat16() for key, t in drawn.items()}
        call["beta"] = torch.rand(shape.B, shape.T, shape.H, generator=generator).bfloat16()
        if decay:
            size = (16,) if decay == "key" else ()
            call["g"] = -torch.rand(shape.B, shape.T, shape.H, *size, generator=generator)
        return operation, {key: t.requires_grad_() for key, t in call.items()}

    return inputs


SHAPE = Shape(B=2, T=64, H=2)


@pytest.fixture
def timed(monkeypatch):
    """Times one baseline with the given inputs on a CPU, without ours, with a clock that says 1 ms."""
    monkeypatch.setattr(baselines, "CHECKED_TOKENS", 40)
    monkeypatch.setattr(baselines, "OURS", {})
    monkeypatch.setattr(baselines.fla, "unusable", lambda: None)
    monkeypatch.setattr(baselines, "milliseconds", lambda work, times=5: 1.0)

    def run(inputs):
        shapes = []

        def prepared(timing, operation, call, bandwidth):
            shapes.append(tuple(call["q"].shape[:3]))
            operation(**call)
            return timing, lambda: operation(**call), list(call.values()), None

        monkeypatch.setattr(baselines, "_prepared", prepared)
        monkeypatch.setattr(baselines, "baseline_inputs", inputs)
        (timing,) = baselines.time_in_turns(SHAPE, "cpu", 2, 1.0, ("GDN",))
        assert shapes == [(2, 64, 2)], "warmed up at the shape that is timed"
        return timing

    return run


@pytest.mark.parametrize("decay", [None, "head", "key"])
def test_right_ones_are_timed(timed, decay):
    timing = timed(baseline(decay=decay))
    assert set(timing.errors) == {"output", "d q", "d k", "d v", "d beta"} | ({"d g"} if decay else set())
    assert all(error < 0.01 for error in timing.errors.values())
    assert (timing.refused, timing.forward_ms, timing.total_ms) == (None, 1.0, 1.0)


@pytest.mark.parametrize(
    ("wrong", "named"), [("scale", "output"), ("half the decay", "output"), ("gradient of k", "d k off by")]
)
def test_wrong_ones_are_not(timed, wrong, named):
    timing = timed(baseline(wrong, "head" if wrong != "gradient of k" else None))
    assert timing.refused.startswith("wrong: ")
    assert named in timing.refused
    assert timing.forward_ms is timing.total_ms is None


def test_what_crashes_is_not_timed(timed):
    timing = timed(baseline("crash"))
    assert timing.refused == "crashed: RuntimeError: not on this GPU"
    assert (timing.errors, timing.forward_ms) == ({}, None)


@pytest.mark.parametrize(("name", "decay"), [("GDN", ()), ("DeltaNet", None), ("KDA", (16,))])
def test_states_have_as_many_numbers_as_ours(monkeypatch, name, decay):
    """Heads of 16 have a state of 256 numbers, as four mixtures of 8 by 8."""
    operations = {"delta_rule": "chunk_delta_rule", "gated_delta_rule": "chunk_gated_delta_rule", "kda": "chunk_kda"}
    for module, operation in operations.items():
        monkeypatch.setitem(sys.modules, f"fla.ops.{module}", SimpleNamespace(**{operation: None}))
    _, call = baselines.baseline_inputs(name, Shape(B=1, T=3, H=2, K=8, V=8, J=4), "cpu")
    assert all(call[key].shape == (1, 3, 2, 16) for key in "qkv")
    assert call["beta"].shape == (1, 3, 2)
    assert (call["g"].shape[3:] if "g" in call else None) == decay


def test_nan_is_wrong():
    assert baselines.baseline_refused({"output": float("nan")}) == "wrong: output off by nan"
    assert baselines.baseline_refused({"output": 0.019, "d g": 0.09}) is None
    assert (
        baselines.baseline_refused({"output": 0.021, "d g": 0.11}) == "wrong: output off by 2.1e-02, d g off by 1.1e-01"
    )


def test_the_errors_of_ours_are_kept_as_well():
    shape = Shape(B=1, T=12, H=1, K=4, V=4, J=2)
    refused, wrong, worst, errors = verdict(get_backend("blocked"), shape, VARIANTS["plain"], torch.float32, "cpu")
    assert (refused, wrong) == (None, False)
    assert {"output", "W", "d q", "d k", "d v", "d beta", "d key_logits", "d query_logits"} <= set(errors)
    assert worst.split(" off by ")[0] in errors
