"""Each baseline against an independent naive form, built from the layer's weights in plain torch."""

import math

import pytest
import torch
from mixers import HIDDEN, build, random
from naive import conv, decay, delta_rule, rms
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from swila.layers import MIXERS as CLASSES
from swila.layers import make_mixer
from swila.layers.mom import switch_loss
from swila.ops.fused.rotary import rotary_table, rotate

T = 11


@pytest.fixture
def x():
    return random(2, T, HIDDEN, seed=3)


def qkv(layer, x):
    q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
    if layer.use_short_conv:
        q, k, v = conv(layer.q_conv1d, q), conv(layer.k_conv1d, k), conv(layer.v_conv1d, v)
    else:
        q, k, v = F.silu(q), F.silu(k), F.silu(v)
    q, k = (t.unflatten(-1, (layer.num_heads, -1)) for t in (q, k))
    q, k = (t / (t.norm(dim=-1, keepdim=True) ** 2 + 1e-6).sqrt() for t in (q, k))
    return q, k, v.unflatten(-1, (layer.num_heads, -1))


def test_deltanet(x):
    layer = build("deltanet")
    q, k, v = qkv(layer, x)
    o = rms(layer, delta_rule(q, k, v, layer.b_proj(x).sigmoid()))
    assert_close(layer(x)[0], layer.o_proj(o.flatten(-2) * F.silu(layer.g_proj(x))))


def test_gated_deltanet(x):
    layer = build("gated-deltanet")
    q, k, v = qkv(layer, x)
    o = rms(layer, delta_rule(q, k, v, layer.b_proj(x).sigmoid(), decay(layer.decay, x)))
    assert_close(layer(x)[0], layer.o_proj(o.flatten(-2) * F.silu(layer.g_proj(x))))


def test_kda(x):
    layer = build("kda")
    q, k, v = qkv(layer, x)
    o = rms(layer, delta_rule(q, k, v, layer.b_proj(x).sigmoid(), decay(layer.decay, x)))
    assert_close(layer(x)[0], layer.o_proj(o.flatten(-2) * layer.g_proj(x).sigmoid()))


@pytest.mark.parametrize(("name", "heads"), [("mom", 2), ("mom-gated", 1), ("mom-gated", 2)])
def test_mom_gathers_each_memory_its_tokens(name, heads, x):
    layer = build(name, num_heads=heads)
    H, D, M = layer.num_heads, layer.head_v_dim, layer.num_memories
    streams = M + layer.shared_memory
    q = conv(layer.q_conv1d, layer.q_proj(x)).unflatten(-1, (H, D))
    q = q / (q.norm(dim=-1, keepdim=True) ** 2 + 1e-6).sqrt()
    probabilities = layer.router(x).softmax(-1)
    out = torch.zeros(2, T, H, D, dtype=x.dtype)
    for m in range(streams):
        width = slice(m * H * D, (m + 1) * H * D)
        k = conv(layer.k_conv1d, F.linear(x, layer.k_proj.weight[width])).unflatten(-1, (H, D))
        k = k / (k.norm(dim=-1, keepdim=True) ** 2 + 1e-6).sqrt()
        v = conv(layer.v_conv1d, F.linear(x, layer.v_proj.weight[width])).unflatten(-1, (H, D))
        beta = F.linear(x, layer.b_proj.weight[m * H : (m + 1) * H]).sigmoid()
        alpha = decay(layer.decay, x)[..., m : m + 1] if layer.decay is not None else None
        for b in range(2):
            for t in range(T):
                chosen = probabilities[b, t].topk(layer.top_k).indices.tolist()
                if m < M and m not in chosen:
                    continue
                mine = [
                    s for s in range(t + 1) if m == M or m in probabilities[b, s].topk(layer.top_k).indices.tolist()
                ]
                parts = [part[b : b + 1, mine] for part in (q, k, v, beta)]
                o = delta_rule(*parts, None if alpha is None else alpha[b : b + 1, mine])[0, -1]
                weight = 1.0 if m == M else probabilities[b, t, m] / probabilities[b, t, chosen].sum()
                out[b, t] += weight * o
    o = rms(layer, out).flatten(-2)
    if layer.g_proj is not None:
        o = o * F.silu(layer.g_proj(x))
    assert_close(layer(x)[0], layer.o_proj(o))


def test_mom_balance():
    layer, x = build("mom").train(), torch.randn(4, 50, HIDDEN, dtype=torch.float64)
    layer(x)
    loss = layer.auxiliary_loss()
    assert layer.auxiliary_loss() is None
    (grad,) = torch.autograd.grad(loss, layer.router.weight)
    assert grad.abs().sum() > 0
    even = torch.full((1, 6, 3), 1 / 3)
    used = torch.tensor([[[1, 1, 0], [1, 0, 1], [0, 1, 1]] * 2]).float()
    assert_close(switch_loss(even, used), torch.tensor(2.0))
    uneven = torch.tensor([0.98, 0.01, 0.01]).expand(1, 6, 3)
    assert switch_loss(uneven, torch.tensor([1.0, 1.0, 0]).expand(1, 6, 3)) > 2.9
    layer.eval()(x)
    assert layer.auxiliary_loss() is None


def test_weights_of_memories_always_sum_to_one(x):
    """So their sum has no gradient; and they are not rounded with the layer."""
    layer = build("mom")
    weights, _ = layer._route(x)
    (grad,) = torch.autograd.grad(weights.sum(), layer.router.weight)
    assert_close(grad, torch.zeros_like(grad))
    weights, _ = layer.bfloat16()._route(x.bfloat16())
    assert_close(weights.sum(-1), torch.ones(2, T))


def rotated(x, theta=10000.0):
    """Rotary positions by complex numbers."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half], x[..., half:])
    angle = torch.arange(x.shape[1])[:, None, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    pairs = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([pairs.real, pairs.imag], -1)


def softmax_attention(q, k, v, bias=0.0):
    groups = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    logits = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1]) + bias
    logits = logits.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    return torch.einsum("bhts,bshd->bthd", logits.softmax(-1), v).flatten(-2)


def test_attention_with_grouped_heads(x):
    layer = build("attention")
    q, k, v = (p(x).unflatten(-1, (-1, layer.head_dim)) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    assert_close(layer(x)[0], layer.o_proj(softmax_attention(rotated(q), rotated(k), v)))


def test_rotary_positions_far_into_a_text():
    """Angles of a millionth token, and of numbers in half precision, are not rounded before the turn."""
    position = torch.tensor([[1_000_003]])
    x = torch.tensor([0.0, 1.0, 0.0, 0.0]).view(1, 1, 1, 4)
    found = rotate(x, rotary_table(position, 4, 10_000.0, x.dtype))
    angle = 1_000_003 * 0.01
    assert_close(found.flatten(), torch.tensor([0.0, math.cos(angle), 0.0, math.sin(angle)]))
    x = random(1, T, 2, 8).bfloat16()
    half, full = (rotary_table(torch.arange(T).unsqueeze(0), 8, 10_000.0, dtype) for dtype in (x.dtype, torch.float64))
    assert torch.equal(rotate(x, half), rotate(x.double(), full).bfloat16())


def convolved(layer, x):
    projected = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
    modules = layer.q_conv1d, layer.k_conv1d, layer.v_conv1d
    return (conv(c, p).unflatten(-1, (-1, layer.head_dim)) for c, p in zip(modules, projected, strict=True))


def test_attention_with_convolutions(x):
    layer = build("attention-conv")
    q, k, v = convolved(layer, x)
    q, k = layer.q_norm(q), layer.k_norm(k)
    assert_close(layer(x)[0], layer.o_proj(softmax_attention(rotated(q), rotated(k), v)))


def test_attention_with_a_convolution_of_its_input(x):
    layer = build("attention-input-conv", use_output_gate=True)
    seen = conv(layer.input_conv1d, x)
    q, k, v = (p(seen).unflatten(-1, (-1, layer.head_dim)) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    o = softmax_attention(rotated(q), rotated(k), v)
    assert_close(layer(x)[0], layer.o_proj(o * layer.g_proj(seen).sigmoid()))


def test_fox(x):
    layer = build("fox")
    q, k, v = convolved(layer, x)
    forget = layer.f_proj(x).sigmoid()
    bias = torch.zeros(2, layer.num_heads, T, T, dtype=x.dtype)
    for t in range(T):
        for s in range(t):
            bias[:, :, t, s] = forget[:, s + 1 : t + 1].log().sum(1)
    o = softmax_attention(q, k, v, bias)
    assert_close(layer(x)[0], layer.o_proj(o * layer.g_proj(x).sigmoid()))


def test_projections_of_fox_have_a_bias_where_asked_for():
    for bias in (True, False):
        layer = make_mixer("fox", HIDDEN, num_heads=2, qkv_bias=bias)
        assert all((getattr(layer, f"{part}_proj").bias is not None) == bias for part in "qkv")


def test_forget_gates_keep_their_precision_under_autocast():
    layer = make_mixer("fox", HIDDEN, num_heads=2)
    torch.nn.init.constant_(layer.f_proj.bias, 6.0)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = layer.extras(torch.zeros(1, 3, HIDDEN))
    assert_close(found, torch.full((1, 3, 2), -math.log1p(math.exp(-6.0))))


def test_forget_gates_are_exact_after_many_tokens():
    layer, log_forget = make_mixer("fox", HIDDEN, num_heads=1), torch.full((1, 20_000, 1), -0.7)
    bias = layer.bias((log_forget, log_forget, log_forget), queries=1)
    assert_close(bias[0, 0, 0, -3:], torch.tensor([-1.4, -0.7, 0.0]))


@pytest.mark.parametrize("name", ["swila", "deltanet", "kda", "mom", "attention-conv", "fox"])
def test_norm_eps_reaches_every_norm(name):
    layer = build(name, norm_eps=0.25, **({"qk_norm": True} if name == "fox" else {}))
    found = {part: module.eps for part, module in layer.named_modules() if isinstance(module, nn.RMSNorm)}
    assert found
    assert set(found.values()) == {0.25}


@pytest.mark.parametrize("name", ["deltanet", "gated-deltanet", "kda", "mom", "fox"])
def test_fla_is_refused_in_words_where_it_cannot_run(name):
    layer = build(name, backend="fla")
    with pytest.raises(ValueError, match=r"backend 'fla' (cannot be used here: |needs )"):
        layer(torch.zeros(1, 3, HIDDEN, dtype=torch.float64))


@pytest.mark.parametrize(
    ("mixer", "options", "message"),
    [
        ("deltanet", {"num_heads": 3}, "expand_k must make hidden_size \\* expand_k a multiple of num_heads"),
        ("deltanet", {"head_dim": 4, "expand_v": 2.0}, "head_dim must be None with expand_k or expand_v"),
        ("deltanet", {"conv_size": 1}, "conv_size must be at least 2, got 1"),
        ("deltanet", {"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ("mom", {"top_k": 5}, "top_k must be between 1 and num_memories = 4, got 5"),
        ("attention", {"num_heads": 3}, "num_heads must divide hidden_size = 16, got 3"),
        ("attention", {"num_kv_heads": 3}, "num_kv_heads must divide num_heads = 8, got 3"),
        ("attention", {"num_heads": 16}, "head_dim must be even for rotary positions, got 1"),
        ("attention", {"rope_theta": 0.0}, "rope_theta must be above 0, or None for no positions, got 0.0"),
        ("attention", {"rope_theta": "yes"}, "rope_theta must be a finite number, got 'yes'"),
        ("deltanet", {"expand_k": "yes"}, "expand_k must be a finite number, got 'yes'"),
        ("deltanet", {"expand_v": math.inf}, "expand_v must be a finite number, got inf"),
        ("fox", {"backend": "cuda"}, "backend must be 'torch' or 'fla', got 'cuda'"),
        ("deltanet", {"layer_idx": -1}, "layer_idx must be the index of the layer in the model"),
    ],
)
def test_bad_options(mixer, options, message):
    with pytest.raises(ValueError, match=message):
        make_mixer(mixer, 16, **options)


@pytest.mark.parametrize("mixer", CLASSES)
@pytest.mark.parametrize("size", ["16", None, 16.0, 0, math.inf])
def test_bad_widths(mixer, size):
    with pytest.raises(ValueError, match=f"hidden_size must be (an integer of )?at least 1, got {size!r}"):
        make_mixer(mixer, size)


def test_unknown_mixer():
    with pytest.raises(ValueError, match=r"mixer must be one of swila, deltanet, .* got 'mamba'"):
        make_mixer("mamba", 16)
