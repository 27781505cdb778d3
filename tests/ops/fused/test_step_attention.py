"""Attention of one token over the cache, beside plain torch."""

import math

import pytest
import torch

from swila.ops.fused import step_attention as module
from swila.ops.fused.rotary import rotary_table, rotate
from swila.ops.fused.step_attention import step_attention, step_attention_reference

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def make(device, B, H, HK, D, slots, dtype):
    torch.manual_seed(B)
    caches = torch.randn(2, B, slots + 3, HK, D).to(device, dtype)
    lengths = torch.randint(0, slots, (B,), device=device)
    lengths[0] = slots - 1
    joint = torch.randn(B, (H + 2 * HK) * D + 16).to(device, dtype)
    return joint, caches[0][:, :slots], caches[1][:, :slots], lengths, torch.arange(B, device=device) % 2 == 0


@pytest.mark.parametrize(
    ("sizes", "dtype", "theta", "norm"),
    [
        ((2, 4, 2, 16, 70), F32, 1e4, False),
        ((3, 3, 3, 32, 300), F32, 1e4, True),
        ((1, 10, 10, 16, 40), F32, 100.0, False),
        ((3, 2, 2, 64, 100), F16, None, False),
        ((3, 2, 1, 64, 100), BF16, 1e4, False),
    ],
)
def test_against_torch(device, sizes, dtype, theta, norm):
    joint, keys, values, lengths, alive = make(device, *sizes, dtype)
    norms = tuple((0.5 + torch.rand(sizes[3])).to(device, dtype) for _ in range(2)) if norm else None
    copies = keys.clone(), values.clone(), lengths.clone()
    found = step_attention(joint, keys, values, lengths, alive, sizes[1], theta, norms, 1e-5)
    expected = step_attention_reference(joint, *copies, alive, sizes[1], theta, norms, 1e-5)
    tolerance = {F32: 2e-6, F16: 2e-3, BF16: 2e-2}[dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    for mine, theirs in zip((keys, values, lengths), copies, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_what_is_beyond_the_length_is_not_read(device):
    joint, keys, values, lengths, alive = make(device, 2, 2, 2, 16, 600, F32)
    lengths.copy_(torch.tensor([4, 5]))
    keys[:, 7:], values[:, 7:] = float("nan"), float("nan")
    assert step_attention(joint, keys, values, lengths, alive, 2, 1e4).isfinite().all()


@pytest.mark.parametrize("position", [2, 2_000_003])
def test_positions_may_be_large(device, position):
    """Angles are computed in float64: in float32 they would be off by 0.1 here."""
    from swila.ops.fused.step_attention_kernels import place

    torch.manual_seed(0)
    joint, lengths = torch.randn(1, 48, device=device), torch.tensor([position], device=device)
    q, cache = torch.zeros(1, 16, device=device), torch.zeros(2, 16, device=device)
    place[(1, 3)](
        joint, joint, joint, lengths, q, cache[0], cache[1], 48, 0, 0, 0.0, LOG_THETA=math.log(1e4),
        H=1, HK=1, D=16, ROTATES=True, NORM=False, HB=8,
    )  # fmt: skip
    for found, column in ((q[0], 0), (cache[0], 16)):
        x = joint[:, None, column : column + 16]
        expected = rotate(x, rotary_table(lengths, 16, 1e4, x.dtype))[0, 0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert torch.equal(cache[1], joint[0, 32:])


def test_many_splits(device, monkeypatch):
    joint, keys, values, lengths, alive = make(device, 1, 2, 2, 16, 200, F32)
    monkeypatch.setattr(module, "LINES", 16)
    copies = keys.clone(), values.clone(), lengths.clone()
    found = step_attention(joint, keys, values, lengths, alive, 2)
    torch.testing.assert_close(found, step_attention_reference(joint, *copies, alive, 2), rtol=1e-5, atol=1e-6)


def test_tiles_fit_into_shared_memory():
    for D in (16, 32, 64, 128, 256):
        for size in (2, 4):
            assert 1 <= module.stages(D, size) <= 3
            assert module.stages(D, size) == 1 or module.stages(D, size) * 2 * module.LINES * D * size <= 99 * 1024
    assert module.stages(128, 2) == module.stages(64, 2) == 3
