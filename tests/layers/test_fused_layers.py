"""Layers with fused pieces (kernels, one product for all projections) and without: the same results and gradients."""

import pytest
import torch
from mixers import MIXERS, build, tokens
from torch import nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

from swila.layers import joint
from swila.layers.joint import Projections, joint_linear
from swila.ops.fused.choice import use_fused


def evaluate(layer, x, fused, **call):
    """Output, and the gradients of the input and of every parameter."""
    x = x.detach().requires_grad_()
    with use_fused(fused):
        y = layer(x, **call)[0]
    weight = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).sin().view(y.shape).to(y)
    inputs = dict(layer.named_parameters()) | {"x": x}
    grads = torch.autograd.grad((y * weight).sum(), inputs.values(), allow_unused=True)
    return {"y": y} | dict(zip(inputs, grads, strict=True))


def compare(found, expected, tolerance=1e-4):
    for name, value in expected.items():
        assert (found[name] is None) == (value is None), name
        if value is not None:
            assert found[name].dtype == value.dtype
            error = (found[name] - value).norm() / (value.norm() + 1e-6)
            assert error < tolerance, f"{name}: {error}"


@pytest.fixture
def joined(monkeypatch):
    """Counts the products that serve several projections, and how many each serves."""
    counts = []
    apply = joint._JointLinear.apply

    def counted(x, spare, count, *rest):
        counts.append(count)
        return apply(x, spare, count, *rest)

    monkeypatch.setattr(joint._JointLinear, "apply", counted)
    return counts


@pytest.mark.parametrize("name", MIXERS)
def test_same_results_and_gradients(name, joined):
    torch.manual_seed(0)
    layer, x = build(name).float(), tokens(2, 9).float()
    compare(evaluate(layer, x, True), evaluate(layer, x, False))
    assert len(joined) == 1
    assert joined[0] >= 3


@pytest.mark.parametrize("name", ["swila-low-rank", "swila-input-conv", "gated-deltanet", "mom-gated"])
def test_same_with_packed_sequences_and_states(name):
    torch.manual_seed(0)
    layer, x = build(name).float(), tokens(1, 12).float()
    bounds = torch.tensor([0, 2, 3, 12])
    compare(evaluate(layer, x, True, cu_seqlens=bounds), evaluate(layer, x, False, cu_seqlens=bounds))
    found = []
    for fused in (True, False):
        with use_fused(fused):
            first, _, cache = layer(x[:, :5], use_cache=True)
            second, _, cache = layer(x[:, 5:], past_key_values=cache)
        loss = first.square().sum() + second.square().sum() + sum(t.square().sum() for t in cache[0]["conv_state"])
        grads = torch.autograd.grad(loss, [layer.q_proj.weight, layer.v_proj.weight])
        found.append({"y": second} | dict(zip("qv", grads, strict=True)))
    compare(*found)


def test_a_decode_step_is_the_same():
    layer, x = build("swila-low-rank").float().eval(), tokens(2, 6).float()
    found = []
    for fused in (True, False):
        with use_fused(fused), torch.no_grad():
            _, _, cache = layer(x[:, :5], use_cache=True)
            state = layer.decoding_state(cache[0], 1)
            found.append(layer.step(x[:, 5:], state, torch.tensor([True, False])))
            found += state["conv_state"]
    for a, b in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["swila-low-rank", "kda"])
def test_half_precision(name):
    """Kernels round less than the steps they replace."""
    torch.manual_seed(0)
    layer, x = build(name), tokens(2, 9)
    exact = evaluate(layer, x, False)
    layer, x = layer.half(), x.half()
    error = {}
    for fused in (True, False):
        found = evaluate(layer, x, fused)
        error[fused] = {k: (v.double() - exact[k]).norm() / exact[k].norm() for k, v in found.items() if v is not None}
    for name_, value in error[True].items():
        assert value <= 2 * error[False][name_] + 2e-3, name_


@pytest.mark.parametrize("name", ["swila-low-rank", "gated-deltanet"])
def test_autocast(name, joined):
    torch.manual_seed(0)
    layer, x = build(name).float(), tokens(2, 9).float()
    exact = evaluate(layer, x, False)
    with torch.autocast(x.device.type, torch.float16 if x.device.type == "cpu" else torch.bfloat16):
        found = evaluate(layer, x, True)
    assert joined
    compare({k: None if v is None else v.float() for k, v in found.items()}, exact, 0.1)
    assert all(found[k].dtype == p.dtype for k, p in layer.named_parameters() if found[k] is not None)


@pytest.mark.unpoisoned
@pytest.mark.parametrize("name", ["swila-low-rank", "kda"])
def test_compiles_to_one_graph(name, device):
    torch.set_default_device(None)
    torch._dynamo.reset()
    layer, x = build(name).float().to(device), tokens(2, 9).float().to(device)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected = evaluate(layer, x, True)
    found = evaluate(compiled, x, True)
    compare({k.removeprefix("_orig_mod."): v for k, v in found.items()}, expected)


def test_checkpointing_recomputes_the_same():
    layer, x = build("swila-low-rank", balance_marginal=0.1).float(), tokens(2, 9).float().requires_grad_()
    found = []
    with use_fused(True):
        for forward in (layer, lambda x: torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)):
            loss = forward(x)[0].square().sum() + layer.auxiliary_loss()
            found.append(torch.autograd.grad(loss, [x, *layer.parameters()]))
    for a, b in zip(*found, strict=True):
        assert_close(a, b, rtol=0, atol=0)


def make_linears():
    torch.manual_seed(0)
    widths = {"a": (32, False), "b": (5, True), "c": (16, False), "d": (1, False)}
    return {name: nn.Linear(8, width, bias=bias) for name, (width, bias) in widths.items()}


def test_one_product_is_all_of_them():
    modules, x = make_linears(), torch.randn(2, 3, 8, requires_grad=True)
    found = joint_linear(x, list(modules.values()))
    parameters = [p for m in modules.values() for p in m.parameters()]
    weights = [torch.randn_like(y) for y in found]
    expected = [m(x) for m in modules.values()]
    assert len({y.untyped_storage().data_ptr() for y in found}) == 1
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)
    for a, b in zip(*(torch.autograd.grad(y, [x, *parameters], weights) for y in (found, expected)), strict=True):
        assert_close(a, b)


def test_gradients_of_gradients():
    modules, x, found = make_linears(), torch.randn(2, 3, 8, requires_grad=True), []
    for outputs in (joint_linear(x, list(modules.values())), [m(x) for m in modules.values()]):
        (dx,) = torch.autograd.grad(sum(y.pow(3).sum() for y in outputs), x, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), [x, modules["a"].weight]))
    for a, b in zip(*found, strict=True):
        assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_frozen_weights_and_inputs():
    modules = make_linears()
    modules["a"].requires_grad_(False)
    x = torch.randn(2, 3, 8)
    sum(y.sum() for y in joint_linear(x, list(modules.values()))).backward()
    assert modules["a"].weight.grad is None
    assert_close(modules["b"].weight.grad, x.sum((0, 1)).expand(5, 8))
    assert_close(modules["b"].bias.grad, torch.full((5,), 6.0))


def test_weights_are_kept_as_they_are():
    """And not concatenated: under FSDP that would keep what it frees."""
    modules, x, kept = make_linears(), torch.randn(2, 3, 8, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        joint_linear(x, list(modules.values()))
    assert set(kept) == {x.data_ptr(), *(m.weight.data_ptr() for m in modules.values())}


@pytest.mark.unpoisoned
def test_compilers_keep_no_concatenation():
    torch.set_default_device(None)
    torch._dynamo.reset()
    modules, x, kept = nn.ModuleDict(make_linears()), torch.randn(2, 3, 8, requires_grad=True), []

    def forward(x):
        return [y.sin() for y in joint_linear(x, list(modules.values()))]

    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        found = torch.compile(forward, fullgraph=True, backend="aot_eager_decomp_partition")(x)
    assert (64, 8) not in kept
    grads = torch.autograd.grad([y.sum() for y in found], modules.parameters())
    for a, b in zip(grads, torch.autograd.grad([y.sum() for y in forward(x)], modules.parameters()), strict=True):
        assert_close(a, b)


def test_parts_start_at_aligned_addresses():
    found = joint_linear(torch.randn(2, 3, 8), list(make_linears().values()))
    assert found[0].stride(1) % 16 == 0
    assert [found[i].storage_offset() % 16 for i in (0, 2)] == [0, 0]


class Adapter(nn.Module):
    """As an adapter library wraps a Linear."""

    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


class Other(torch.Tensor):
    """A tensor with products of its own, as quantised weights have."""


def hook(layer, which):
    module = layer.get_submodule(which)
    calls = []
    module.register_forward_hook(lambda m, args, y: calls.append(m) or 3 * y)
    return calls


@pytest.mark.parametrize("which", ["v_proj", "b_proj", "b_proj.0", "key_router.1", "key_gate", "decay.proj"])
def test_modules_with_hooks_are_called(which):
    layer, x = build("swila-low-rank").float(), tokens(2, 9).float()
    before = evaluate(layer, x, True)["y"]
    calls = hook(layer, which)
    found = evaluate(layer, x, True)
    assert len(calls) == 1
    assert (found["y"] - before).norm() > 1e-3 * before.norm()
    compare(found, evaluate(layer, x, False))


@pytest.mark.parametrize("change", ["adapter", "parametrized", "forward", "subclass"])
@pytest.mark.parametrize("which", ["q_proj", "query_router.1", "b_proj.0"])
def test_replaced_modules_are_called(change, which):
    torch.manual_seed(0)
    layer, x = build("swila-low-rank").float(), tokens(2, 9).float()
    parent, _, name = which.rpartition(".")
    owner, module = layer.get_submodule(parent), layer.get_submodule(which)
    if change == "adapter":
        owner._modules[name] = Adapter(module)
    elif change == "parametrized":
        parametrize.register_parametrization(module, "weight", Doubled())
    elif change == "forward":
        forward = module.forward
        module.forward = lambda x: 2 * forward(x)
    else:
        module.weight = nn.Parameter(module.weight.detach().as_subclass(Other))
    found, expected = evaluate(layer, x, True), evaluate(layer, x, False)
    compare(found, expected)
    assert joint._first(owner.get_submodule(name)) is None


def test_a_dtype_of_its_own_is_left_alone():
    modules = make_linears()
    modules["b"].double()
    assert not joint._joinable(torch.randn(2, 3, 8), list(modules.values()))


def test_without_gradients_short_inputs_are_not_joined(joined):
    layer = build("swila-low-rank").float()
    with use_fused(True), torch.no_grad():
        layer(tokens(1, 9).float())
        assert not joined
        layer(tokens(1, joint.FEWEST_TOKENS).float())
        assert joined


def test_nothing_of_full_width_is_kept():
    """Learning rates and logits are expanded again in the backward."""
    layer = build("swila-low-rank", num_heads=2, num_mixtures=6).float()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        layer(tokens(2, 9).float())
    width = 2 * 9 * layer.num_heads * layer.num_mixtures * layer.head_v_dim
    decay = 2 * 9 * layer.num_heads * layer.num_mixtures * layer.head_k_dim
    assert width == decay  # only the decay is as wide: its softplus and itself
    assert sum(n == width for n in kept) <= 4


def test_low_rank_results_without_a_low_rank_operation():
    """The layer with changed operands takes the other path, with the same results."""
    torch.manual_seed(0)
    layer, x = build("swila-low-rank"), tokens(2, 9)
    expected = evaluate(layer, x, False)
    seen = []
    with layer.changed(lambda operands: seen.append(set(operands)) or operands):
        found = evaluate(layer, x, False)
    assert {"beta", "key_logits", "query_logits"} <= seen[0]
    compare(found, expected, 1e-10)


def test_noise_on_low_rank_logits():
    """In training alone; the layer then takes the other path."""
    torch.manual_seed(0)
    layer, x = build("swila-low-rank", router_noise=True).float(), tokens(2, 9).float()
    with use_fused(True):
        assert not torch.equal(layer(x)[0], layer(x)[0])
        layer(x)[0].square().sum().backward()
        assert layer.query_noise.weight.grad.abs().sum() > 0
        layer.eval()
        assert torch.equal(layer(x)[0], layer(x)[0])


def test_a_cache_of_attention_does_not_keep_the_whole_product():
    layer, x = build("fox", use_short_conv=False).float(), tokens(2, 9).float()
    with use_fused(True):
        cache = layer(x, use_cache=True)[2]
    assert all(t.untyped_storage().nbytes() <= t.nbytes for t in cache[0]["attn_state"])


def test_projections_one_by_one():
    layer, x = build("swila-low-rank").float(), tokens(2, 9).float()
    with use_fused(True):
        project = Projections(x, layer.readers())
    assert set(project.first) == set(layer.readers())
    for name, module in layer.readers().items():
        assert_close(project(name), module(x))
    assert_close(project.low("b_proj"), layer.b_proj[0](x))
    assert project.up("q_proj") is None
    assert project.up("b_proj") is layer.b_proj[1].weight
