"""The choice of a token and the state of the loop, beside plain torch."""

import pytest
import torch

from swila.ops.fused.next_token import Loop, keep_hidden, keep_hidden_reference, pick_token, pick_token_reference


def make(device, B):
    loop = Loop(
        torch.tensor([2]),
        torch.tensor([False, True, False, False, True, False])[:B],
        torch.tensor([0, 0, 0, 2, 0, 0])[:B],
        torch.full((5, B), -7),
        torch.zeros(B, dtype=torch.bool),
    )
    return Loop(*(t.to(device) for t in loop))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("N", [50, 9000])
def test_against_torch(device, dtype, N):
    torch.manual_seed(0)
    B, D = 6, 40
    logits = torch.randn(B, N + 3).to(device, dtype)[:, :N]
    logits[5, [N - 3, 20, 30]] = 11.0  # the first of several
    embedding, stop = torch.randn(N, D).to(device, dtype), torch.tensor([20, 4], device=device)
    mine, theirs = make(device, B), make(device, B)
    found = pick_token(logits, embedding, stop, mine, -1)
    expected = pick_token_reference(logits, embedding, stop, theirs, -1)
    assert torch.equal(found, expected)
    for ours, other in zip(mine, theirs, strict=True):
        assert torch.equal(ours, other)
    assert mine.tokens[2].tolist()[5] == 20
    assert mine.done.tolist() == [False, True, False, False, True, True]
    assert mine.alive.tolist() == [True, False, True, True, False, True]
    assert mine.tokens[2, 1] == -1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite(device, value):
    logits = torch.zeros(6, 30, device=device)
    logits[:] = 0
    logits[[1, 2, 3]] = value
    mine, theirs = make(device, 6), make(device, 6)
    nothing = torch.zeros(0, dtype=torch.long, device=device)
    pick_token(logits, torch.zeros(30, 4, device=device), nothing, mine, -1)
    pick_token_reference(logits, torch.zeros(30, 4, device=device), nothing, theirs, -1)
    assert mine.broken.tolist() == theirs.broken.tolist() == [0, 0, 3, 2, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_hidden_state(device, dtype):
    torch.manual_seed(0)
    x, hidden, weight = (torch.randn(*shape).to(device, dtype) for shape in ((6, 40), (6, 40), (40,)))
    mine, theirs, copy = make(device, 6), make(device, 6), hidden.clone()
    for loop in (mine, theirs):
        loop.alive.copy_(torch.tensor([True, False, True, True, False, True]))
    keep_hidden(x, weight, 1e-5, hidden, mine)
    keep_hidden_reference(x, weight, 1e-5, copy, theirs)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(hidden, copy, rtol=tolerance, atol=tolerance)
    assert torch.equal(hidden[1], copy[1])
    assert mine.at.tolist() == [3]
