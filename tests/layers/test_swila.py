"""The SwiLA layer: the equations of the paper from its weights, and what it does in training."""

import copy
import io

import pytest
import torch
import torch.utils.checkpoint
from mixers import HIDDEN, build, random
from naive import conv, decay, rms
from torch.nn import functional as F
from torch.testing import assert_close

from swila.layers import SwiLA
from swila.layers.context import CallContext


def naive(layer, x):
    """Appendix B, one number at a time where it matters: loops over tokens and mixtures, no use of the operation."""
    B, T, _ = x.shape
    H, J, K, V = layer.num_heads, layer.num_mixtures, layer.head_k_dim, layer.head_v_dim
    if layer.convolves == "input":
        x = conv(layer.input_conv1d, x)
    projected = [layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)]
    if layer.convolves == "qkv":
        projected = [
            conv(c, p) for c, p in zip((layer.q_conv1d, layer.k_conv1d, layer.v_conv1d), projected, strict=True)
        ]
    else:
        projected = [F.silu(p) for p in projected]
    q, k, v = (p.unflatten(-1, (H, -1)) for p in projected)
    q, k = (t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    beta = layer.b_proj(x).sigmoid().view(B, T, H, J, V)
    if J > 1:
        prior_k = layer.key_router(x).view(B, T, H, J, V).softmax(3)
        prior_q = layer.query_router(x).view(B, T, H, J, V).softmax(3)
    else:
        prior_k = prior_q = torch.ones_like(beta)
    if layer.temporal:
        g_k = (layer.key_gate(x) + layer.key_gate_bias).sigmoid().view(B, T, H, V)
        g_q = (layer.query_gate(x) + layer.query_gate_bias).sigmoid().view(B, T, H, V)
    alpha = torch.ones(B, T, H, J, V, K, dtype=x.dtype)
    if layer.decay_kind is not None:
        a = decay(layer.decay, x).unflatten(2, (H, J))
        alpha = alpha * (a.unsqueeze(-1) if layer.decay_kind == "value" else a.unsqueeze(-2))
    W = x.new_zeros(B, H, J, V, K)
    r = rho = x.new_full((B, H, J, V), 1 / J)
    out = []
    for t in range(T):
        decayed = alpha[:, t] * W
        before = decayed if layer.decay_order == "pre" else W
        error = v[:, t, :, None] - torch.einsum("bhjvk,bhk->bhjv", before, k[:, t])
        prior = prior_k[:, t]
        if layer.temporal:
            prior = (1 - g_k[:, t, :, None]) * r + g_k[:, t, :, None] * prior
        r = prior * torch.exp(-error.square() / 2)
        if layer.normalize:
            r = r / r.sum(2, keepdim=True)
        W = decayed + torch.einsum("bhjv,bhk->bhjvk", beta[:, t] * r * error, k[:, t])
        rho = (1 - g_q[:, t, :, None]) * rho + g_q[:, t, :, None] * prior_q[:, t] if layer.temporal else prior_q[:, t]
        out.append((rho * torch.einsum("bhjvk,bhk->bhjv", W, q[:, t])).sum(2))
    o = rms(layer, torch.stack(out, 1)).flatten(-2)
    return layer.o_proj(o if layer.g_proj is None else o * F.silu(layer.g_proj(x)))


@pytest.fixture
def x():
    return random(2, 9, HIDDEN, seed=5)


@pytest.mark.parametrize(
    "name",
    [
        "swila",
        "swila-temporal",
        "swila-gated",
        "swila-value",
        "swila-all",
        "swila-low-rank",
        "swila-input-conv",
        "swila-one",
    ],
)
def test_the_equations_and_their_gradients(name, x):
    layer = build(name)
    weights = list(layer.parameters())
    assert_close(layer(x)[0], naive(layer, x))
    found = torch.autograd.grad(layer(x)[0].square().sum(), weights)
    expected = torch.autograd.grad(naive(layer, x).square().sum(), weights)
    for (parameter, _), a, b in zip(layer.named_parameters(), found, expected, strict=True):
        assert_close(a, b, msg=lambda text, name=parameter: f"{name}: {text}")


def test_one_mixture_has_no_routers():
    layer = build("swila-one", router_noise=True)
    assert not [name for name, _ in layer.named_parameters() if "router" in name or "noise" in name]


def test_sticky_gates(x):
    open_, sticky = (build("swila-temporal", temporal_bias=bias) for bias in (0.0, -2.0))
    assert_close(torch.sigmoid(sticky.key_gate_bias).mean().item(), 0.1192, atol=1e-4, rtol=0)
    assert open_.query_gate_bias.abs().sum() == 0


def test_noise_in_training_only(x):
    layer = build("swila-temporal", router_noise=True, temporal_noise=True)
    names = {"key_noise", "query_noise", "key_gate_noise", "query_gate_noise"}
    assert names <= {name.split(".")[0] for name, _ in layer.named_parameters()}
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer(x)[0].square().sum().backward()
    assert all(getattr(layer, name).weight.grad.abs().sum() > 0 for name in names)
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    assert_close(layer(x)[0], naive(layer, x))


def test_noise_is_what_the_paper_says(x):
    """ε softplus(x θ) with ε of unit variance, drawn anew for each logit."""
    layer = build("swila", router_noise=True)
    many = x[:1, :1].expand(4000, 1, -1)
    logits = layer._operands(many, *layer._project(many, None, CallContext())[1:4])["key_logits"]
    clean = layer.key_router(x[:1, :1]).view(1, 1, *logits.shape[2:])
    scale = F.softplus(layer.key_noise(x[:1, :1])).view(1, 1, *logits.shape[2:])
    drawn = (logits - clean) / scale
    assert drawn.mean().abs() < 0.02
    assert_close(drawn.std(0).mean().item(), 1.0, atol=0.02, rtol=0)


def test_trace_is_what_the_recurrence_did(x):
    layer = build("swila-temporal", track_routing=True).eval()
    layer(x)
    trace = layer.trace(x)
    assert trace.key.shape == (2, 9, 2, 4, 4)
    assert_close(trace.key.sum(3), torch.ones_like(trace.key[:, :, :, 0]))
    assert_close(trace.key.mean((0, 1)), layer.last_call.stats.key_usage)
    assert_close(trace.query.mean((0, 1)), layer.last_call.stats.query_usage)
    cache = layer(x, use_cache=True)[2]
    assert_close(trace.key[:, -1], cache[0]["recurrent_state"].r)
    assert_close(trace.query[:, -1], cache[0]["recurrent_state"].rho)


def test_changes_of_the_operands_end_with_their_block(x):
    layer = build("swila").eval()
    usual = layer(x)[0]
    with layer.changed(lambda operands: operands | {"beta": 0 * operands["beta"]}):
        assert layer(x)[0].abs().max() == 0
    assert torch.equal(layer(x)[0], usual)


def test_statistics_carry_no_graph(x):
    layer = build("swila", balance_marginal=0.1)
    layer(x)
    assert not any(part.requires_grad for part in layer.last_call.stats)
    assert layer.auxiliary_loss().requires_grad


def test_load_balancing_loss_is_handed_out_once(x):
    layer = build("swila", balance_marginal=0.1)
    layer(x)
    loss = layer.auxiliary_loss()
    routers = [layer.key_router.weight, layer.query_router.weight]
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(loss, routers))
    assert layer.auxiliary_loss() is None
    layer(x)
    layer.eval()(x)
    assert layer.auxiliary_loss() is not None, "an evaluation in between leaves it"
    layer(x)
    assert layer.auxiliary_loss() is None
    layer.train()(x)
    layer(x, attention_mask=torch.zeros(2, 9))
    assert layer.auxiliary_loss() is None, "the last call had no tokens"
    layer = build("swila").train()
    layer(x)
    assert layer.auxiliary_loss() is None
    assert layer.routing_diagnostics() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_mixtures": 0}, "num_mixtures must be at least 1, got 0"),
        ({"decay": True}, "decay must be None, 'key', 'value' or 'head', got True"),
        ({"decay_order": "after"}, "decay_order must be 'pre' or 'post', got 'after'"),
        ({"router_projection": "swiglu"}, "router_projection must be 'linear', 'low-rank:RANK' or 'swiglu:WIDTH'"),
        ({"beta_projection": "low-rank:0"}, "beta_projection must be .* got 'low-rank:0'"),
        ({"temporal_noise": True}, "temporal_noise has no effect without temporal=True"),
        ({"temporal_bias": -2.0}, "temporal_bias has no effect without temporal=True"),
        ({"decay_projection": "low-rank:2"}, "decay_projection has no effect without a decay"),
        ({"expand_k": 0.3}, "expand_k must make hidden_size \\* expand_k a multiple of num_heads, got 16 \\* 0.3"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"balance_marginal": -1}, "balance_marginal must be a finite number of at least 0, got -1"),
        ({"balance_conditional": -0.5}, "balance_conditional must be a finite number of at least 0, got -0.5"),
        ({"temporal": "yes"}, "temporal must be True or False, got 'yes'"),
        ({"temporal": True, "temporal_bias": float("nan")}, "temporal_bias must be a finite number, got nan"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        SwiLA(HIDDEN, **{"num_heads": 2, **options})


def test_the_papers_language_model_size():
    layer = SwiLA(1024, num_heads=8, num_mixtures=4, decay="key", temporal=True, router_projection="low-rank:16")
    assert layer.state_size() == 131_072
    assert (layer.head_k_dim, layer.head_v_dim) == (64, 64)


def test_copies_begin_without_the_last_call(x):
    layer = build("swila-gated", balance_marginal=0.1)
    layer(x)
    other = copy.deepcopy(layer)
    assert other.auxiliary_loss() is None
    assert other.routing_diagnostics() is None
    assert layer.auxiliary_loss() is not None
    layer(x)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False).auxiliary_loss() is None


def test_load_balancing_under_gradient_checkpointing(x):
    layer = build("swila", balance_marginal=0.1)
    expected = torch.autograd.grad(layer(x)[0].square().sum() + layer.auxiliary_loss(), layer.parameters())
    y = torch.utils.checkpoint.checkpoint(lambda t: layer(t)[0], x.clone().requires_grad_(), use_reentrant=False)
    (y.square().sum() + layer.auxiliary_loss()).backward()
    for parameter, grad in zip(layer.parameters(), expected, strict=True):
        assert_close(parameter.grad, grad)
    assert layer.last_call.loss is None, "the recomputation left nothing"
