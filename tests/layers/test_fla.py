"""flash-linear-attention's kernels and our operation are one and the same layer, where both can run."""

import copy

import pytest
import torch
from torch.testing import assert_close

from swila.layers import fla, make_mixer

LAYERS = {
    "deltanet": ("deltanet", {"num_heads": 2, "head_dim": 128}),
    "gated-deltanet": ("gated-deltanet", {"num_heads": 2, "head_dim": 128}),
    "kda": ("kda", {"num_heads": 2, "head_dim": 128}),
    "dn-mom": ("mom", {"num_heads": 1, "head_dim": 128}),
    "gdn-mom": ("mom", {"num_heads": 1, "head_dim": 128, "decay": True, "shared_memory": True}),
    "fox": ("fox", {"num_heads": 2}),
}


# A layer's tests in one process: its kernels tune themselves for minutes, once in each.
@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in LAYERS])
def pair(request, device, monkeypatch):
    if device == "cpu" or (reason := fla.unusable()):
        pytest.skip("needs --device cuda" if device == "cpu" else reason)
    chunk_o = pytest.importorskip("fla.ops.common.chunk_o")
    # it refuses gated backwards for triton 3.4 to 3.7.0 on Hopper; with heads of 128 they are right
    monkeypatch.setattr(chunk_o, "TRITON_ABOVE_3_7_1", True, raising=False)
    mixer, options = LAYERS[request.param]
    torch.manual_seed(0)
    ours = make_mixer(mixer, 256, layer_idx=0, **options)
    theirs = make_mixer(mixer, 256, layer_idx=0, **options, backend="fla")
    theirs.load_state_dict(ours.state_dict())
    return ours.bfloat16(), theirs.bfloat16()


def run(layer, x, **options):
    x = x.clone().requires_grad_()
    y = layer(x, **options)[0]
    weight = torch.linspace(-1, 1, y.numel(), dtype=torch.float32).view(y.shape)
    parameters = dict(layer.named_parameters())
    grads = torch.autograd.grad((y.float() * weight).sum(), [x, *parameters.values()], allow_unused=True)
    return {"output": y, "d input": grads[0], **dict(zip(parameters, grads[1:], strict=True))}


def agree(theirs, ours, x, **options):
    """Their error, measured against our layer in float32, is at most that of ours in the same precision or so."""
    found, rounded = run(theirs, x, **options), run(ours, x, **options)
    exact = run(copy.deepcopy(ours).float(), x.float(), **options)
    for name, truth in exact.items():
        size = truth.norm().clamp_min(1e-6)
        error, usual = ((part[name].float() - truth).norm() / size for part in (found, rounded))
        # its gradients of decays are differences of rounded sums
        allowed = 0.1 if name.startswith("decay") else 0.02 + 2 * usual
        assert error < allowed, f"{name}: {error:.3f}, ours {usual:.3f}"


@pytest.mark.parametrize("T", [50, 200])
def test_whole_sequences(pair, T):
    x = torch.randn(2, T, 256, dtype=torch.bfloat16)
    ours, theirs = pair
    agree(theirs, ours, x)


def test_packed_sequences(pair):
    x, bounds = torch.randn(1, 150, 256, dtype=torch.bfloat16), torch.tensor([0, 17, 100, 150])
    ours, theirs = pair
    agree(theirs, ours, x, cu_seqlens=bounds)


@torch.no_grad()
def test_states_can_be_exchanged(pair):
    x = torch.randn(2, 90, 256, dtype=torch.bfloat16)
    ours, theirs = (layer.eval() for layer in pair)
    whole = ours(x)[0]
    _, _, cache = theirs(x[:, :80], use_cache=True)
    for layer, state in ((ours, cache.released()), (theirs, cache)):
        rest = torch.cat([layer(part, past_key_values=state)[0] for part in x[:, 80:].split([6, 1, 3], 1)], 1)
        assert_close(rest.float(), whole[:, 80:].float(), atol=0.03 * whole.float().abs().max().item(), rtol=0)
