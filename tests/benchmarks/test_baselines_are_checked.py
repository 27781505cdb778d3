"""Flash-linear-attention's kernels are compared with the specification before they are timed."""

import pytest
import torch

from swila.benchmarks import rivals
from swila.benchmarks.op import verdict
from swila.layers.delta_rule import delta_rule
from swila.ops.backends import get_backend
from swila.testing import VARIANTS, Shape


def rival(wrong=None, decay=None):
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


@pytest.mark.parametrize("decay", [None, "head", "key"])
def test_right_ones_are_timed(monkeypatch, decay):
    monkeypatch.setattr(rivals, "CHECKED", Shape(B=1, T=40, H=2))
    monkeypatch.setattr(rivals, "rival_inputs", rival(decay=decay))
    errors = rivals.rival_errors("any", "cpu")
    assert set(errors) == {"output", "d q", "d k", "d v", "d beta"} | ({"d g"} if decay else set())
    assert all(error < 0.01 for error in errors.values())
    assert rivals.rival_refused(errors) is None


@pytest.mark.parametrize(
    ("wrong", "named"), [("scale", "output"), ("half the decay", "output"), ("gradient of k", "d k off by")]
)
def test_wrong_ones_are_not(monkeypatch, wrong, named):
    monkeypatch.setattr(rivals, "CHECKED", Shape(B=1, T=40, H=2))
    monkeypatch.setattr(rivals, "rival_inputs", rival(wrong, "head" if wrong != "gradient of k" else None))
    refused, errors = rivals.rival_verdict("any", "cpu")
    assert errors == rivals.rival_errors("any", "cpu")
    assert refused.startswith("wrong: ")
    assert named in refused


def test_what_crashes_is_not_timed(monkeypatch):
    monkeypatch.setattr(rivals, "rival_inputs", rival("crash"))
    assert rivals.rival_verdict("any", "cpu") == ("crashed: RuntimeError: not on this GPU", {})


def test_nan_is_wrong():
    assert rivals.rival_refused({"output": float("nan")}) == "wrong: output off by nan"
    assert rivals.rival_refused({"output": 0.019, "d g": 0.09}) is None
    assert rivals.rival_refused({"output": 0.021, "d g": 0.11}) == "wrong: output off by 2.1e-02, d g off by 1.1e-01"


def test_the_errors_of_ours_are_kept_as_well():
    shape = Shape(B=1, T=12, H=1, K=4, V=4, J=2)
    refused, wrong, worst, errors = verdict(get_backend("blocked"), shape, VARIANTS["plain"], torch.float32, "cpu")
    assert (refused, wrong) == (None, False)
    assert {"output", "W", "d q", "d k", "d v", "d beta", "d key_logits", "d query_logits"} <= set(errors)
    assert worst.split(" off by ")[0] in errors
