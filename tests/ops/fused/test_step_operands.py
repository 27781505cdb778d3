"""The operands of a step from the product with all projections, beside plain torch."""

import pytest
import torch

from swila.ops.fused.step_operands import Heads, Operand, step_operands, step_operands_reference

F32, F16 = torch.float32, torch.float16


def make(device, B, dtype=F32, taps=4, bias=False):
    torch.manual_seed(B)
    H, K, V, J, R = 3, 16, 32, 3, 5

    def new(*shape):
        return torch.randn(*shape).to(device, dtype)

    def heads(column, D):
        if not taps:
            return Heads(column, H, D)
        return Heads(column, H, D, new(H * D, taps), new(H * D) if bias else None, new(B, taps - 1, H * D))

    joint = new(B, 300)[:, :280]
    others = [
        Operand("sigmoid", H * J * V, 200, new(H * J * V, R)),
        Operand("linear", 70, 205),
        Operand("sigmoid", H * V, 217, repeat=V),
        Operand("decay", 12, 230, None, torch.randn(12, device=device), 1, torch.randn(3, device=device), 4),
        Operand("zeros", 65),
        Operand("decay", H * J * K, 240, new(H * J * K, R), torch.randn(H * J * K, device=device) - 6, 1,
                torch.randn(H * J, device=device), K),
        Operand("linear", H * V, 250, new(H * V, 20), new(H * V)),
    ]  # fmt: skip
    return joint, [heads(0, K), heads(48, K), heads(96, V)], others


@pytest.mark.parametrize(("B", "dtype", "taps", "bias"), [
    (1, F32, 4, False), (3, F32, 2, True), (20, F32, 4, True), (3, F32, 0, False), (2, F16, 3, False),
])  # fmt: skip
def test_against_torch(device, B, dtype, taps, bias):
    joint, heads, others = make(device, B, dtype, taps, bias)
    alive = torch.arange(B, device=device) % 3 != 1
    copies = [part._replace(state=None if part.state is None else part.state.clone()) for part in heads]
    before = [None if part.state is None else part.state.clone() for part in heads]
    found = step_operands(joint, alive, heads, others)
    expected = step_operands_reference(joint, alive, copies, others)
    tolerance = {"rtol": 1e-5, "atol": 2e-6} if dtype == F32 else {"rtol": 2e-3, "atol": 2e-3}
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.is_contiguous()
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, **tolerance)
    for mine, theirs, old in zip(heads, copies, before, strict=True):
        if old is not None:
            assert torch.equal(mine.state, theirs.state)
            assert torch.equal(mine.state[~alive], old[~alive])
            assert not torch.equal(mine.state[alive], old[alive])


def test_small_decays_keep_their_precision(device):
    """Their rates multiply them: softplus(-15) is 3e-7, of which 1 + x would keep one digit."""
    joint = torch.full((1, 16), -15.0, device=device)
    operand = Operand("decay", 16, rates=torch.zeros(1, device=device), group=16)
    heads = [Heads(0, 1, 16)] * 3
    found = step_operands(joint, torch.ones(1, dtype=torch.bool, device=device), heads, [operand])[-1]
    expected = -torch.log1p(torch.exp(torch.tensor(-15.0, dtype=torch.float64)))
    assert abs(found[0, 0].item() / expected.item() - 1) < 1e-6
