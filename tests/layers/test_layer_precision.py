"""Every sequence layer in lower precision and under ``torch.compile``."""

import pytest
import torch
from mixers import build, tokens
from torch.testing import assert_close


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_precision(layer, dtype):
    x = tokens(2, 9)
    exact, _, _ = layer(x)
    y, _, cache = layer.to(dtype)(x.to(dtype), use_cache=True)
    assert y.dtype == dtype
    error = (y.double() - exact).norm() / exact.norm()
    assert error < 12 * torch.finfo(dtype).eps
    assert layer(x[:, :1].to(dtype), past_key_values=cache)[0].dtype == dtype


def test_autocast(layer):
    x = tokens(2, 9).float()
    exact, _, _ = layer.float()(x)
    with torch.autocast(x.device.type, torch.bfloat16):
        y, _, _ = layer(x)
        y.float().square().sum().backward()
    assert (y.float() - exact).norm() < 0.1 * exact.norm()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters() if p.grad is not None)


@pytest.mark.unpoisoned
@pytest.mark.parametrize(
    "name", ["swila-temporal", "swila-low-rank", "swila-balanced", "gated-deltanet", "mom", "attention", "fox"]
)
def test_compiles_to_one_graph(name):
    torch.set_default_device(None)  # tracing does not know it
    balanced = {"balance_marginal": 0.1} if name == "swila-balanced" else {}
    layer = build("swila" if balanced else name, **balanced).float()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for T in (5, 9):
        x = tokens(2, T).float().requires_grad_()
        grads = []
        for forward in (layer, compiled):
            loss = forward(x)[0].square().sum()
            grads += torch.autograd.grad(loss + layer.auxiliary_loss() if balanced else loss, x)
        assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


@pytest.mark.unpoisoned
def test_decoding_compiles():
    torch.set_default_device(None)
    layer, x = build("swila-temporal").float().eval(), tokens(1, 6).float()
    step = torch.compile(lambda t, cache: layer(t, past_key_values=cache)[0], fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        whole = layer(x)[0]
        _, _, cache = layer(x[:, :3], use_cache=True)
        for t in range(3, 6):
            assert_close(step(x[:, t : t + 1], cache), whole[:, t : t + 1], rtol=1e-4, atol=1e-5)
