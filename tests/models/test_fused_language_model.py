"""A language model with fused kernels is the same model: losses, gradients, and what is kept."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from language_models import tiny, tokens, tolerance
from swila.models.language import feed_forward
from swila.ops.fused import feed_forward as fused_feed_forward
from swila.ops.fused.choice import use_fused

pytestmark = pytest.mark.usefixtures("on_the_device")


def results(model, ids, fused, **given):
    with use_fused(fused):
        loss = model(ids, labels=ids, **given).loss
        return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("name", ["deltanet", "transformer"])
def test_loss_and_gradients(name):
    model, ids = tiny(name, num_hidden_layers=2).train(), tokens(2, 7)
    (loss, gradients), (expected, expected_gradients) = (results(model, ids, fused) for fused in (True, False))
    assert_close(loss, expected, **tolerance())
    assert_close(gradients, expected_gradients, **tolerance())
    assert not all(torch.equal(a, b) for a, b in zip(gradients, expected_gradients, strict=True))  # other code ran


def test_gradient_checkpointing():
    model, ids = tiny("deltanet", num_hidden_layers=2).train(), tokens(2, 7)
    _, expected = results(model, ids, True)
    model.gradient_checkpointing_enable()
    _, gradients = results(model, ids, True)
    assert_close(gradients, expected, **tolerance())


def test_autocast(device):
    model, ids = tiny("transformer", num_hidden_layers=2).train(), tokens(2, 7)
    found = []
    for fused in (True, False):
        with torch.autocast(device, torch.bfloat16):
            found.append(results(model, ids, fused))
    (loss, gradients), (expected, expected_gradients) = found
    assert_close(loss, expected, rtol=0.01, atol=0)
    for a, b in zip(gradients, expected_gradients, strict=True):
        assert a.dtype == b.dtype
        assert (a - b).norm() < 0.1 * b.norm()


@pytest.mark.unpoisoned
@pytest.mark.parametrize("again", [False, True], ids=["", "checkpointed"])
def test_a_compiled_block(again):
    block = tiny("transformer").model.layers[0].train()
    x = torch.randn(2, 5, 128).requires_grad_()
    wanted = [x, *block.parameters()]
    torch.set_default_device(None)  # tracing does not know it
    with use_fused(False):
        expected = block(x)
        expected_gradients = torch.autograd.grad(expected.square().sum(), wanted)
    torch._dynamo.reset()
    compiled = torch.compile(block.forward, fullgraph=True, backend="aot_eager")
    with use_fused(True):
        out = checkpoint(compiled, x, use_reentrant=False) if again else compiled(x)
        gradients = torch.autograd.grad(out.square().sum(), wanted)
    assert_close(out, expected, **tolerance())
    assert_close(gradients, expected_gradients, **tolerance(20))


def test_hooks_and_other_classes_are_respected(monkeypatch):
    """The block calls its norms and its MLP as modules if they are more than that."""
    block, calls = tiny("transformer").model.layers[0].train(), []
    x = torch.randn(2, 5, 128)
    with use_fused(True):
        expected = block(x)
        for part in (block.mixer_norm, block.mlp_norm, block.mlp, block.mlp.gate, block.mlp.up, block.mlp.down):
            handle = part.register_forward_hook(lambda *_: calls.append(1))
            before = len(calls)
            assert_close(block(x), expected, **tolerance())
            assert len(calls) == before + 1
            handle.remove()
        monkeypatch.setattr(fused_feed_forward, "_FeedForward", None)
        with pytest.raises(AttributeError):  # without hooks it is one function
            block(x)


def test_what_a_feed_forward_layer_keeps():
    """Sum, gate and up, and nothing besides; unfused, twice the width of the inner layer more."""
    block = tiny("transformer").model.layers[0].train()
    x, y = (torch.randn(1, 6, 128, requires_grad=True) for _ in range(2))
    sizes = {}
    for fused in (True, False):
        found = {}

        def pack(t, found=found):
            found[t.untyped_storage()._cdata] = t.untyped_storage()
            return t

        with use_fused(fused), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            out = feed_forward.add_feed_forward(block.mlp_norm, block.mlp, x, y)
        weights = {p.untyped_storage()._cdata for p in block.parameters()}
        sizes[fused] = sum(s.nbytes() for key, s in found.items() if key not in weights)
        assert out.shape == x.shape
    assert sizes[True] == 4 * 6 * (128 + 2 * 64)
    assert sizes[False] >= 4 * 6 * (2 * 128 + 4 * 64)


def test_sharded_weights(tmp_path, device):
    """FSDP gathers them before a block runs, frees them after it, and gathers them again for its backward pass."""
    if device != "cpu":
        pytest.skip("its ranks are on the CPU")
    torch.set_default_device(None)
    model, ids = tiny("transformer", num_hidden_layers=2).train(), tokens(2, 7)
    loss, expected = results(model, ids, True)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for block in model.model.layers:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        fully_shard(model, mesh=mesh)
        with use_fused(True):
            sharded = model(ids, labels=ids).loss
            sharded.backward()
        assert_close(sharded.detach(), loss, **tolerance())
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            assert_close(parameter.grad.to_local(), gradient, **tolerance())
    finally:
        dist.destroy_process_group()
