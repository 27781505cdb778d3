"""Products of a few rows with many matrices, beside plain torch in float64."""

import pytest
import torch

from swila.ops.fused import skinny as module
from swila.ops.fused.rms_norm import rms_norm
from swila.ops.fused.skinny import GEMV_ROWS, Prologue, plan_product, skinny, skinny_reference

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def make(device, B, K, rows, dtype=F32, norm=None, gate=None, residual=False, swiglu=False):
    """Arguments of a product; ``norm`` is the width of what is normalised. Inputs are parts of wider tensors."""
    torch.manual_seed(B + K)
    x = (3 * torch.randn(B, K + 16)).to(device, dtype)[:, :K] if B > 1 else torch.randn(B, K).to(device, dtype)
    weights = [(torch.randn(n, K) / K**0.5).to(device, dtype) for n in rows]
    head = None if norm in (None, K) else norm
    prologue = Prologue(
        None if norm is None else (0.5 + torch.rand(norm)).to(device, dtype),
        1e-5,
        head,
        None if gate is None else torch.randn(B, K + 32).to(device, dtype)[:, 16 : 16 + K],
        gate or "silu",
    )
    added = torch.randn(B, rows[0] if swiglu else sum(rows)).to(device, dtype) if residual else None
    return x, weights, prologue, added, swiglu


def assert_right(arguments):
    dtype = arguments[0].dtype
    found, expected = skinny(*arguments), skinny_reference(*arguments)
    assert found.dtype == dtype
    tolerance = {F32: 2e-5, F16: 6e-3, BF16: 5e-2}[dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    return found


KINDS = {
    "many matrices": {"K": 96, "rows": [40, 64, 3, 1, 16, 7, 33, 5, 9, 2], "norm": 96},
    "heads": {"K": 128, "rows": [70], "norm": 32, "residual": True},
    "gated heads": {"K": 64, "rows": [35], "norm": 16, "gate": "silu", "residual": True},
    "heads with a sigmoid": {"K": 64, "rows": [20], "norm": 32, "gate": "sigmoid"},
    "gated": {"K": 80, "rows": [20], "gate": "sigmoid"},
    "SwiGLU": {"K": 72, "rows": [37, 37], "norm": 72, "swiglu": True},
    "long rows": {"K": 1300, "rows": [33], "residual": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("B", [1, 2, 17, 33])
def test_against_torch(device, kind, B):
    assert_right(make(device, B, **KINDS[kind]))


@pytest.mark.parametrize("kind", ["many matrices", "heads", "SwiGLU"])
@pytest.mark.parametrize("B", [1, 3])
def test_half_precision(device, kind, B):
    assert_right(make(device, B, dtype=F16, **KINDS[kind]))
    if B <= GEMV_ROWS or device != "cpu":  # the interpreter has no products of bfloat16
        assert_right(make(device, B, dtype=BF16, **KINDS[kind]))


@pytest.mark.parametrize("kind", ["many matrices", "heads", "SwiGLU", "long rows"])
def test_parts_are_added_by_the_last_to_come(device, kind, monkeypatch):
    """And the counters are left as they were found."""
    plan = plan_product

    def split(B, K, *others):
        found = plan(B, K, *others)
        per = -(-K // (3 * found.BK)) * found.BK
        return found._replace(per=per, splits=-(-K // per))

    monkeypatch.setattr(module, "plan_product", split)
    arguments = make(device, 5, **KINDS[kind])
    first = assert_right(arguments)
    assert torch.equal(skinny(*arguments), first)
    counters = module._counters[first.device]
    assert not counters.any()


@pytest.mark.parametrize("B", [2, 20])
def test_a_row_does_not_depend_on_the_others(device, B):
    x, weights, prologue, _, _ = make(device, B, 128, [64, 20], norm=128)
    first = skinny(x, weights, prologue)
    other = x.clone()
    other[1:] = float("nan")
    assert torch.equal(skinny(other, weights, prologue)[0], first[0])


@pytest.mark.parametrize("B", [1, 2])
def test_large_inputs_of_half_precision(device, B):
    """Their products with the weight of the norm overflow unless they are normalised first."""
    x, weights, prologue, _, _ = make(device, B, 64, [10], dtype=F16, norm=64)
    prologue = prologue._replace(weight=prologue.weight * 4)
    found = skinny(x * 3000, weights, prologue)
    assert found.isfinite().all()
    torch.testing.assert_close(found, skinny_reference(x * 3000, weights, prologue), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("memory", [99 * 1024, 163 * 1024, 227 * 1024])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("B", [2, 16, 17, 64, 100, 128])
@pytest.mark.parametrize(("K", "rows", "pair"), [
    (2048, [1024] * 3 + [64] * 3, False), (1024, [2048], False), (2048, [6800], True), (6800, [2048], False),
    (2048, [32000], False), (48, [5], False), (2048, [2048] * 4, False),
])  # fmt: skip
def test_plans(B, K, rows, pair, gated, memory):
    """Every input is covered once, the counters suffice, and tiles fit into shared memory."""
    plan = plan_product(B, K, rows, pair, gated, 2, memory)
    assert B <= plan.BM <= 128
    assert plan.per % plan.BK == 0
    assert plan.per * (plan.splits - 1) < K <= plan.per * plan.splits
    assert plan.splits == 1 or plan.tiles <= module.MOST_COUNTERS
    assert plan.stages >= 2 or (pair and gated)
    assert plan.stages * (plan.BM * (1 + gated) + plan.BN * (1 + pair)) * plan.BK * 2 < memory
    assert plan.part == plan.BM * plan.BN * (1 + pair)


def test_more_rows_are_normalised_by_a_launch_of_its_own(device, monkeypatch):
    """A gate without a norm is applied by the product."""
    calls = []
    monkeypatch.setattr(module, "rms_norm", lambda *args: calls.append(1) or rms_norm(*args))
    for kind in ("many matrices", "heads", "gated heads", "SwiGLU", "gated"):
        for B in (GEMV_ROWS, GEMV_ROWS + 1):
            assert_right(make(device, B, **KINDS[kind]))
            assert calls == ([1] if B > GEMV_ROWS and kind != "gated" else [])
            calls.clear()
