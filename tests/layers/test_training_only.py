"""What layers do in training alone, and how their weights start: noise, dropout, load balancing, initial values."""

import math

import pytest
import torch
from mixers import HIDDEN, build, random
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from swila.layers import SwiLA, collect_auxiliary_loss, collect_routing_diagnostics, make_mixer, mutual_information_loss
from swila.layers.context import CallContext
from swila.layers.decay import DecayGate
from swila.layers.mom import switch_loss
from swila.layers.norms import l2_norm, rms_norm
from swila.layers.projection import make_projection
from swila.layers.short_conv import ShortConvolution
from swila.models.block import Block


def operands_of(layer, x):
    """What the layer hands to the operation."""
    return layer._operands(x, *layer._project(x, None, CallContext())[1:4])


NOISY = {
    "key_logits": ("key_router", None, "key_noise"),
    "query_logits": ("query_router", None, "query_noise"),
    "key_gate": ("key_gate", "key_gate_bias", "key_gate_noise"),
    "query_gate": ("query_gate", "query_gate_bias", "query_gate_noise"),
}


@pytest.mark.parametrize("name", NOISY)
def test_noise_of_every_router_and_gate(name):
    """Section 3.5: ``ε softplus(x θ)`` on each kind of logits, ε of unit variance, new for every token and logit."""
    torch.manual_seed(0)
    layer = build("swila-temporal", router_noise=True, temporal_noise=True)
    x = random(1, 1, HIDDEN, seed=5)
    found = operands_of(layer, x.expand(200, 30, -1).contiguous())[name]
    logits = found if name.endswith("logits") else found.logit()
    module, bias, noise = (None if part is None else getattr(layer, part) for part in NOISY[name])
    clean = module(x) if bias is None else module(x) + bias
    scale = F.softplus(noise(x))
    drawn = (logits.flatten(2) - clean) / scale
    drawn = drawn.flatten(0, 1).detach()  # [6000, logits]
    n = drawn.numel()
    assert drawn.mean().abs() < 6 / math.sqrt(n)
    assert_close(drawn.var().item(), 1.0, rtol=0, atol=6 * math.sqrt(2 / n))
    assert_close(drawn.pow(4).mean().item(), 3.0, rtol=0, atol=6 * math.sqrt(96 / n))
    between = torch.corrcoef(drawn.T) - torch.eye(drawn.shape[1])
    assert between.abs().max() < 6 / math.sqrt(len(drawn)), "every logit has noise of its own"
    in_time = (drawn.unflatten(0, (200, 30))[:, 1:] * drawn.unflatten(0, (200, 30))[:, :-1]).mean()
    assert in_time.abs() < 6 / math.sqrt(n), "every token has"
    layer.eval()
    assert_close(operands_of(layer, x)[name].flatten(2), clean if name.endswith("logits") else clean.sigmoid())


def test_order_of_noise(monkeypatch):
    """A change of the order changes every run with noise: the keys' router and gate come first, then the queries'."""
    layer, x = build("swila-temporal", router_noise=True, temporal_noise=True), random(2, 5, HIDDEN)
    names = {module: name for name, module in layer.named_children()}
    drawn, noisy = [], layer._noisy

    def note(logits, noise, x):
        drawn.append(names[noise])
        return noisy(logits, noise, x)

    monkeypatch.setattr(layer, "_noisy", note)
    layer(x)
    assert drawn == ["key_noise", "key_gate_noise", "query_noise", "query_gate_noise"]


def test_router_noise_leaves_the_gates_alone():
    layer = build("swila-temporal", router_noise=True)
    x = random(2, 5, HIDDEN)
    a, b = operands_of(layer, x), operands_of(layer, x)
    assert torch.equal(a["key_gate"], b["key_gate"])
    assert torch.equal(a["query_gate"], b["query_gate"])
    assert torch.equal(a["beta"], b["beta"])
    assert not torch.equal(a["key_logits"], b["key_logits"])
    assert not torch.equal(a["query_logits"], b["query_logits"])


@pytest.mark.parametrize("given", [{}, {"balance_conditional": 0.02}, {"balance_conditional": 0.0}], ids=str)
def test_both_weights_of_load_balancing_count(given):
    layer, x = build("swila", balance_marginal=0.3, **given), random(2, 7, HIDDEN)
    layer(x)
    loss = layer.auxiliary_loss()
    conditional = given.get("balance_conditional", 0.3)
    assert_close(loss, mutual_information_loss(layer.last_call.stats, 0.3, conditional))
    usage, entropy = layer.last_call.stats.key_usage, layer.last_call.stats.key_entropy
    query, query_entropy = layer.last_call.stats.query_usage, layer.last_call.stats.query_entropy
    marginal = [-(u * u.log()).sum(1).mean() for u in (usage, query)]
    expected = (conditional * (entropy.mean() + query_entropy.mean()) - 0.3 * sum(marginal)) / 2
    assert_close(loss, expected)


def test_commitment_alone_is_a_loss_too():
    layer = build("swila", balance_marginal=0.0, balance_conditional=0.1)
    layer(random(2, 7, HIDDEN))
    assert layer.auxiliary_loss() > 0


@pytest.mark.parametrize("given", [{}, {"balance_scale": 0.5}], ids=str)
def test_the_balance_of_memories_is_scaled(given):
    """By 0.01 unless told otherwise, as in the paper of MoM."""
    layer, x = build("mom", **given), random(2, 7, HIDDEN)
    layer(x)
    probabilities = layer.router(x).softmax(-1)
    used = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(2).indices, 1.0)
    shares, means = used.mean((0, 1)), probabilities.mean((0, 1))
    expected = given.get("balance_scale", 0.01) * 3 * sum(shares[m] * means[m] for m in range(3))
    assert_close(layer.auxiliary_loss(), expected)
    build("mom", balance_scale=0.0)(x)
    assert_close(switch_loss(probabilities, used) * given.get("balance_scale", 0.01), expected)


def test_a_shared_memory_is_not_balanced():
    layer, x = build("mom-gated", num_memories=4), random(2, 7, HIDDEN)
    layer(x)
    probabilities = layer.router(x).softmax(-1)
    used = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(2).indices, 1.0)
    assert_close(layer.auxiliary_loss(), 0.01 * switch_loss(probabilities, used))


def test_the_auxiliary_loss_is_the_mean_over_layers_that_have_one():
    balanced = [build("swila", balance_marginal=weight) for weight in (0.1, 0.7)]
    model, x = nn.ModuleList([*balanced, build("deltanet")]), random(2, 7, HIDDEN)
    for layer in model:
        layer(x)
    losses = [layer.last_call.loss for layer in balanced]
    assert_close(collect_auxiliary_loss(model), sum(losses) / 2)


def test_routing_diagnostics_are_the_mean_over_layers_that_have_some():
    torch.manual_seed(0)
    tracked = [build("swila", track_routing=True) for _ in range(2)]
    model, x = nn.ModuleList([*tracked, build("deltanet")]), random(2, 7, HIDDEN)
    for layer in model:
        layer(x)
    first, second = (layer.routing_diagnostics() for layer in tracked)
    assert first.key_routing_entropy != second.key_routing_entropy
    for name, found in collect_routing_diagnostics(model)._asdict().items():
        assert_close(found, (getattr(first, name) + getattr(second, name)) / 2)
    assert collect_routing_diagnostics(model[-1]) is None


class Constant(nn.Module):
    """A mixer that adds ones."""

    hidden_size = 40

    def forward(self, x, *args, **kwargs):
        return torch.ones_like(x), None, None


@pytest.mark.parametrize("part", ["mixer", "mlp"])
def test_dropout_of_each_sublayer(part):
    """What a sublayer adds is dropped with the told probability and scaled up; the residual stream is not."""
    torch.manual_seed(0)
    block = Block(Constant(), dropout=0.3)
    with torch.no_grad():
        for layer in (block.mlp.fc1, block.mlp.fc2):
            layer.weight.zero_()
            layer.bias.zero_()
        if part == "mlp":
            block.mlp.fc2.bias.fill_(1.0)
            block.mixer.forward = lambda x, *args, **kwargs: (torch.zeros_like(x), None, None)
    x = torch.full((50, 20, 40), 7.0)
    added = block(x) - x
    kept = added > 0
    assert_close(added[kept], torch.full_like(added[kept], 1 / 0.7), rtol=1e-5, atol=1e-5)
    assert (added[~kept] == 0).all()
    assert_close(kept.float().mean().item(), 0.7, rtol=0, atol=6 * math.sqrt(0.21 / x.numel()))
    assert_close(block.eval()(x), x + 1)


def test_embedding_dropout():
    from swila.models import SyntheticModel, SyntheticModelConfig

    torch.manual_seed(0)
    model = SyntheticModel(SyntheticModelConfig(8, 32, 1, "deltanet", {"num_heads": 1}, embed_dropout=0.25))
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    tokens = torch.randint(8, (20, 30))
    model(tokens)
    embedded = model.embedding(tokens)
    kept = seen[0] != 0
    assert_close(kept.float().mean().item(), 0.75, rtol=0, atol=6 * math.sqrt(0.1875 / kept.numel()))
    assert_close(seen[0][kept], (embedded / 0.75)[kept])


def quantiles(x):
    return x.double().quantile(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)).tolist()


@pytest.mark.parametrize("slowest", [0.0, 1.0])
def test_decays_start_as_in_mamba(slowest):
    """Rates uniform up to 16, steps log-uniform in [0.001, 0.1]."""
    torch.manual_seed(0)
    gate = DecayGate(4, 4000, slowest=slowest)
    rates, steps = gate.A_log.exp().detach(), F.softplus(gate.dt_bias).detach()
    width = 16 - slowest
    expected = [slowest + width * share for share in (0, 0.25, 0.5, 0.75, 1)]
    assert quantiles(rates) == pytest.approx(expected, abs=0.05 * width)
    assert slowest - 1e-3 <= rates.min()
    assert rates.max() <= 16 + 1e-3
    logs = (steps.log() - math.log(1e-3)) / math.log(100)
    assert quantiles(logs) == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.05)
    assert gate.no_weight_decay == ("A_log", "dt_bias")


def test_decays_are_marked_for_other_trainers():
    gate = DecayGate(4, 3, 5)
    marked = {name for name, parameter in gate.named_parameters() if getattr(parameter, "_no_weight_decay", False)}
    assert marked == set(gate.no_weight_decay) == {"A_log", "dt_bias"}


def test_decays_keep_their_precision_under_autocast():
    gate = DecayGate(4, 3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        found = gate(torch.zeros(2, 4))
    expected = -gate.A_log.exp().unsqueeze(-1) * F.softplus(gate.dt_bias).view(3, 5)
    assert_close(found, expected.expand(2, 3, 5))


def test_which_decays_may_start_at_nothing():
    """Those per head, as in Mamba-2 and GDN; not those of KDA and of Gated SwiLA."""
    assert make_mixer("gated-deltanet", 16, num_heads=2).decay.slowest == 0.0
    assert make_mixer("mom", 16, num_heads=2, decay=True).decay.slowest == 0.0
    assert make_mixer("kda", 16, num_heads=2).decay.slowest == 1.0
    assert SwiLA(16, num_heads=2, decay="key").decay.slowest == 1.0


def test_convolutions_start_as_torchs():
    torch.manual_seed(0)
    weight = ShortConvolution(4000, 4).weight.detach()
    assert quantiles(weight) == pytest.approx([-0.5, -0.25, 0.0, 0.25, 0.5], abs=0.02)
    assert (ShortConvolution(4, 2, bias=True).bias == 0).all()


def test_unit_length():
    """``x / sqrt(|x|² + 1e-6)``: what has no length stays without, and half precision does not overflow."""
    x = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)
    assert_close(l2_norm(x), x / math.sqrt(25 + 1e-6), rtol=1e-12, atol=0)
    assert_close(l2_norm(1e-3 * x), 1e-3 * x / math.sqrt(25e-6 + 1e-6), rtol=1e-12, atol=0)
    assert (l2_norm(torch.zeros(3)) == 0).all()
    large = torch.full((4,), 300.0, dtype=torch.float16)
    assert_close(l2_norm(large), torch.full((4,), 0.5, dtype=torch.float16))


def test_the_norm_of_the_output_is_in_the_precision_of_its_weight():
    norm, x = nn.RMSNorm(4, eps=1e-5), torch.tensor([300.0, 0, 0, 0], dtype=torch.float16)
    found = rms_norm(norm, x)
    assert found.dtype == torch.float16
    assert_close(found, torch.tensor([2.0, 0, 0, 0], dtype=torch.float16))
    small = torch.tensor([1e-3, 0, 0, 0], dtype=torch.float64)
    expected = 1e-3 / math.sqrt(1e-6 / 4 + 1e-5)
    layer = build("swila")
    assert layer.o_norm.eps == 1e-5
    assert rms_norm(norm.double(), small)[0].item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mixer", "options", "expected"),
    [
        ("deltanet", {}, {"num_heads": 8, "head_k_dim": 8, "head_v_dim": 8, "g_proj": None, "decay": None}),
        ("gated-deltanet", {}, {"num_heads": 8, "head_k_dim": 8, "head_v_dim": 8, "output_gate_activation": "silu"}),
        ("kda", {}, {"num_heads": 8, "head_k_dim": 8, "output_gate_activation": "sigmoid"}),
        ("mom", {}, {"num_memories": 4, "top_k": 2, "shared_memory": False, "balance_scale": 0.01, "decay": None}),
        ("attention", {}, {"num_heads": 8, "num_kv_heads": 8, "head_dim": 8, "rope_theta": 10_000.0, "g_proj": None}),
        ("attention", {"num_kv_heads": 2}, {"num_heads": 8, "num_kv_heads": 2, "head_dim": 8}),
        ("fox", {}, {"num_heads": 8, "rope_theta": None, "use_short_conv": False}),
    ],
)
def test_defaults(mixer, options, expected):
    layer = make_mixer(mixer, 64, **options)
    assert {name: getattr(layer, name) for name in expected} == expected
    if mixer in ("deltanet", "gated-deltanet", "kda", "mom"):
        assert layer.q_conv1d.width == layer.k_conv1d.width == layer.v_conv1d.width == 4
        assert layer.o_norm.eps == 1e-5


def test_forget_gates_have_a_bias():
    layer = make_mixer("fox", 16, num_heads=2)
    assert layer.f_proj.bias.shape == (2,)
    x = random(1, 3, 16)
    assert_close(layer.double().extras(x)[0], layer.f_proj(x).sigmoid().log())


def test_state_sizes_are_scalars_of_the_matrices():
    sizes = {
        "swila": 2 * 3 * 4 * 4,
        "swila-temporal": 2 * 4 * 4 * 4,
        "swila-one": 2 * 4 * 4,
        "deltanet": 2 * 8 * 16,
        "gated-deltanet": 2 * 6 * 6,
        "kda": 2 * 8 * 4,
        "mom": 3 * 2 * 4 * 4,
        "mom-gated": 5 * 4 * 4,
    }
    for name, size in sizes.items():
        assert build(name).state_size() == build(name).state_size(50) == size, name
    assert build("attention").state_size(50) == 2 * 2 * 4 * 50


def test_both_temporal_gates_start_sticky():
    layer = SwiLA(16, num_heads=2, temporal=True, temporal_bias=-2.0)
    assert (layer.key_gate_bias == -2).all()
    assert (layer.query_gate_bias == -2).all()


def test_activations_of_convolutions():
    """SiLU in layers with a matrix state, none in attention, nor where the whole input is convolved."""
    for mixer in ("swila", "deltanet", "gated-deltanet", "kda", "mom"):
        layer = make_mixer(mixer, 16, num_heads=2)
        assert {getattr(layer, f"{part}_conv1d").activation for part in "qkv"} == {"silu"}, mixer
        assert make_mixer(mixer, 16, num_heads=2, conv_on="input").input_conv1d.activation is None
    for mixer in ("attention", "fox"):
        layer = make_mixer(mixer, 16, num_heads=2, use_short_conv=True)
        assert {getattr(layer, f"{part}_conv1d").activation for part in "qkv"} == {None}, mixer


def test_projections_by_hand():
    x = random(3, 6)
    swiglu = make_projection("it", "swiglu:5", 6, 4).double()
    gate, up, down = (getattr(swiglu, name).weight for name in ("gate", "up", "down"))
    inner = x @ gate.T
    assert_close(swiglu(x), (inner * inner.sigmoid() * (x @ up.T)) @ down.T)
    low = make_projection("it", "low-rank:2", 6, 4, bias=True).double()
    assert_close(low(x), x @ (low[1].weight @ low[0].weight).T + low[1].bias)
    assert [tuple(p.shape) for p in low.parameters()] == [(2, 6), (4, 2), (4,)]
    assert make_projection("it", "linear", 6, 4).bias is None


def test_projections_of_kda_have_the_rank_of_a_head():
    layer = make_mixer("kda", 16, num_heads=2, expand_v=0.5)
    assert layer.decay.proj[0].out_features == layer.g_proj[0].out_features == layer.head_v_dim == 4
    assert layer.g_proj[1].bias is not None
    assert (layer.decay.groups, layer.decay.width) == (2, 8)


def test_norms_of_queries_and_keys_are_their_own():
    """A weight of the one does not reach the other."""
    layer, x = make_mixer("attention", 16, num_heads=1, qk_norm=True, rope_theta=None).double(), random(1, 2, 16)
    with torch.no_grad():
        layer.q_norm.weight.copy_(torch.linspace(-1, 2, 16))
        layer.k_norm.weight.copy_(torch.linspace(3, 1, 16))
    q, k, v = layer.q_proj(x)[0], layer.k_proj(x)[0], layer.v_proj(x)[0]
    q, k = (
        t / (t.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
        for t, norm in ((q, layer.q_norm), (k, layer.k_norm))
    )
    weights = (q[1] @ k.T / 4).softmax(-1)
    assert_close(layer(x)[0][0], layer.o_proj(torch.stack([v[0], weights @ v])))
