"""Decode steps in fused kernels: those of the plain path, for every option they serve; other blocks are left alone."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from language_models import tiny, tokens, tolerance
from swila import SwiLAConfig, SwiLAForCausalLM, generate, prefill
from swila.generation import release
from swila.layers import SwiLA, decoding
from swila.layers.cache import map_tensors
from swila.models.language import block as block_module
from swila.models.language import modeling
from swila.ops.fused.choice import use_fused

SWILA = {"num_heads": 2, "head_dim": 16}
LOW = {"router_projection": "low-rank:6", "beta_projection": "low-rank:20"}
VARIANTS = {
    "linear": ("swila", SWILA),
    "low-rank": ("swila", {**SWILA, **LOW}),
    "temporal": ("swila", {**SWILA, **LOW, "temporal": True, "temporal_bias": -1.0, "use_output_gate": True}),
    "by key": ("swila", {**SWILA, "decay": "key", "decay_projection": "low-rank:8", "decay_order": "post"}),
    "by value": ("swila", {**SWILA, "decay": "value", "temporal": True, "normalize": False}),
    "by head": ("swila", {**SWILA, "decay": "head", "num_mixtures": 1}),
    "other widths": ("swila", {"num_heads": 2, "expand_k": 1.0, "expand_v": 2.0, "num_mixtures": 2}),
    "no convolution": ("swila", {**SWILA, "use_short_conv": False}),
    "biased convolution": ("swila", {**SWILA, "conv_bias": True, "conv_size": 2}),
    "deltanet": ("deltanet", SWILA),
    "gdn": ("gated-deltanet", SWILA),
    "kda": ("kda", SWILA),
    "attention": ("attention", {"num_heads": 2}),
    "grouped attention": ("attention", {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "qk_norm": True}),
    "gated attention": ("attention", {"num_heads": 2, "rope_theta": None, "use_output_gate": True}),
}


def make(mixer, options, dtype=torch.float32, **more):
    torch.manual_seed(0)
    config = SwiLAConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=1, intermediate_size=48, mixer=mixer,
        mixer_options={mixer: options}, initializer_range=0.2, **more,
    )  # fmt: skip
    model = SwiLAForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype)


@pytest.fixture
def taken(monkeypatch):
    """The mixers whose steps were fused."""
    seen = []

    def fused_step(mixer, *arguments):
        seen.append(mixer)
        return right(mixer, *arguments)

    right = block_module.fused_step
    monkeypatch.setattr(block_module, "fused_step", fused_step)
    return seen


def steps(model, rows, fused, compiled=False):
    """Hidden states, states and states before, of two steps of rows of which the second is not alive."""
    state = prefill(model, [tokens(n + 2, seed=n).remainder(40).tolist() for n in range(rows)])
    states = model.model.decoding_states(state.cache, 12)
    before = copy.deepcopy(states)
    alive = torch.arange(rows) != 1
    with torch.no_grad(), use_fused(fused):
        for i in range(2):
            hidden = model.model.step(torch.arange(3, 3 + rows) + i, states, alive, compiled)
    return hidden, states, before, alive


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_same_as_the_plain_path(name, rows, taken):
    model = make(*VARIANTS[name])
    expected, plain, _, alive = steps(model, rows, fused=False)
    assert not taken
    found, fused, before, _ = steps(model, rows, fused=True)
    assert len(taken) == 2
    assert_close(found[alive], expected[alive], **tolerance())
    for mine, theirs, old in zip(fused, plain, before, strict=True):
        map_tensors(lambda a, b: assert_close(a[alive].float(), b[alive].float(), **tolerance()), mine, theirs)
        if mine.get("attn_state") is not None:
            assert torch.equal(mine["attn_state"][-1], old["attn_state"][-1] + 2 * alive)
        for part in ("recurrent_state", "conv_state"):
            for new, same in zip(mine.get(part) or (), old.get(part) or (), strict=True):
                assert new is None or torch.equal(new[~alive], same[~alive])


@pytest.mark.parametrize("name", ["temporal", "gdn", "attention"])
def test_half_precision(name, taken):
    model = make(*VARIANTS[name], dtype=torch.float16)
    expected, _, _, alive = steps(model, 3, fused=False)
    found, *_ = steps(model, 3, fused=True)
    assert taken
    assert found.dtype == torch.float16
    assert_close(found[alive], expected[alive], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["temporal-swila", "gdn", "transformer", "fox"])
def test_tokens_of_transformers(name):
    """With the head and the choice of tokens in fused kernels too; FoX's blocks are not."""
    model = tiny(name, num_hidden_layers=1)
    rows = [tokens(n, seed=n).tolist() for n in (5, 2)]
    with use_fused(True):
        found = generate(model, rows, max_new_tokens=5, stop=()).tokens
        alone = generate(model, rows[0], max_new_tokens=5, stop=()).tokens
    release(model)
    for row, mine in zip(rows, found, strict=True):
        ids = torch.tensor([row])
        out = model.generate(ids, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=None)
        assert mine == out[0, len(row) :].tolist()
    assert alone == found[:1]


def test_rows_that_stop():
    model = make(*VARIANTS["temporal"])
    rows = [[1, 2, 3], [4, 5]]
    free = generate(model, rows, max_new_tokens=6, stop=()).tokens
    stop = [free[0][1]]
    expected = generate(model, rows, max_new_tokens=6, stop=stop, return_state=True)
    release(model)
    with use_fused(True):
        found = generate(model, rows, max_new_tokens=6, stop=stop, return_state=True)
    assert found.tokens == expected.tokens
    assert found.stopped == expected.stopped
    assert_close(found.state.hidden, expected.state.hidden, **tolerance())
    assert_close(found.state.cache[0]["recurrent_state"].W, expected.state.cache[0]["recurrent_state"].W, **tolerance())


def test_logits_that_are_not_finite():
    model = make(*VARIANTS["temporal"])
    state = prefill(model, [[1, 2], [3, 4]])
    state.hidden[1] = float("nan")
    with use_fused(True), pytest.raises(ValueError, match="got NaN or infinity for row 1 at step 1"):
        generate(model, state=state, max_new_tokens=3, stop=())


def test_fused_and_plain_steps_have_decoders_of_their_own():
    from swila.generation.api import _decoders

    model = make(*VARIANTS["linear"])
    with use_fused(False):
        generate(model, [1, 2], max_new_tokens=1, stop=())
    plain = _decoders[model]
    with use_fused(True):
        generate(model, [1, 2], max_new_tokens=1, stop=())
    assert _decoders[model] is not plain


def test_fused_blocks_are_not_compiled(monkeypatch, taken):
    monkeypatch.setattr(modeling, "_compiled_step", None)
    model = make(*VARIANTS["linear"])
    steps(model, 1, fused=True, compiled=True)
    assert taken


class Other(SwiLA):
    """A layer that computes something else."""


def _replace_type(model):
    model.model.layers[0].mixer.__class__ = Other


CHANGES = {
    "hook on a projection": lambda model: model.model.layers[0].mixer.k_proj.register_forward_hook(lambda *a: None),
    "hook on the inner part": lambda model: (
        model.model.layers[0].mixer.b_proj[0].register_forward_hook(lambda *a: None)
    ),
    "hook on a router": lambda model: model.model.layers[0].mixer.key_router.register_forward_hook(lambda *a: None),
    "hook on a norm": lambda model: model.model.layers[0].mlp_norm.register_forward_pre_hook(lambda *a: None),
    "hook on the feed-forward": lambda model: model.model.layers[0].mlp.up.register_forward_hook(lambda *a: None),
    "hook on the whole feed-forward": lambda model: model.model.layers[0].mlp.register_forward_hook(lambda *a: None),
    "forward of the feed-forward": lambda model: setattr(model.model.layers[0].mlp, "forward", lambda x: x),
    "forward of a router": lambda model: setattr(model.model.layers[0].mixer.key_router, "forward", lambda x: x),
    "bias of the feed-forward": lambda model: setattr(
        model.model.layers[0].mlp.up, "bias", nn.Parameter(torch.ones(48))
    ),
    "bias of the inner part": lambda model: setattr(
        model.model.layers[0].mixer.b_proj[0], "bias", nn.Parameter(torch.ones(20))
    ),
    "activation": lambda model: setattr(model.model.layers[0].mixer.q_conv1d, "activation", None),
    "bias": lambda model: setattr(model.model.layers[0].mixer.o_proj, "bias", nn.Parameter(torch.zeros(32))),
    "another kind": lambda model: setattr(model.model.layers[0].mlp, "down", nn.Identity()),
    "another dtype": lambda model: model.model.layers[0].mixer.v_conv1d.double(),
    "parametrised": lambda model: nn.utils.parametrizations.weight_norm(model.model.layers[0].mlp.gate),
    "strides": lambda model: setattr(model.model.layers[0].mlp.gate, "weight", nn.Parameter(torch.zeros(32, 48).mT)),
    "changed operands": lambda model: setattr(model.model.layers[0].mixer, "_change", lambda operands: operands),
    "training": lambda model: model.train(),
    "subclass": _replace_type,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_left_alone(name):
    model = make(*VARIANTS["low-rank"])
    block, x = model.model.layers[0], torch.zeros(2, 1, 32)
    with use_fused(True):
        assert block.fuses_step(x)
        CHANGES[name](model)
        assert not block.fuses_step(x)


def test_ranks_that_are_left_alone(monkeypatch):
    """A kernel has the whole rank of a projection in one product."""
    model, x = make(*VARIANTS["low-rank"]), torch.zeros(2, 1, 32)
    with use_fused(True):
        assert model.model.layers[0].fuses_step(x)
        monkeypatch.setattr(decoding, "MOST_RANK", 19)
        assert not model.model.layers[0].fuses_step(x)


def test_biases_and_decays_that_are_left_alone():
    for name, change in {
        "temporal": lambda mixer: setattr(mixer.key_gate, "bias", nn.Parameter(torch.ones(32))),
        "gdn": lambda mixer: setattr(mixer.b_proj, "bias", nn.Parameter(torch.ones(2))),
        "by head": lambda mixer: setattr(mixer.decay, "forward", lambda *arguments: None),
        "by key": lambda mixer: setattr(mixer.decay.proj[1], "bias", nn.Parameter(torch.ones(16))),
    }.items():
        block = make(*VARIANTS[name]).model.layers[0]
        with use_fused(True):
            assert block.fuses_step(torch.zeros(2, 1, 32)), name
            change(block.mixer)
            assert not block.fuses_step(torch.zeros(2, 1, 32)), name


def test_calls_that_are_left_alone(device):
    block = make(*VARIANTS["low-rank"]).model.layers[0]
    with use_fused(True):
        assert block.fuses_step(torch.zeros(128, 1, 32))
        assert not block.fuses_step(torch.zeros(129, 1, 32))
        assert not block.fuses_step(torch.zeros(1, 1, 32).double())
        with torch.autocast(device, torch.bfloat16):
            assert not block.fuses_step(torch.zeros(1, 1, 32))
    with use_fused(False):
        assert not block.fuses_step(torch.zeros(1, 1, 32))
    for options in ({"conv_on": "input"}, {"head_dim": 24}, {"router_projection": "swiglu:4"}):
        other = make("swila", {**SWILA, **options}).model.layers[0]
        with use_fused(True):
            assert not other.fuses_step(torch.zeros(1, 1, 32))
    for options in ({"qkv_bias": True}, {"use_short_conv": True}):
        other = make("attention", {"num_heads": 2, **options}).model.layers[0]
        with use_fused(True):
            assert not other.fuses_step(torch.zeros(1, 1, 32))


def test_a_head_of_ones_own_is_called():
    model = make(*VARIANTS["linear"])
    calls = []
    model.lm_head.register_forward_hook(lambda *arguments: calls.append(1))
    with use_fused(True):
        generate(model, [1, 2], max_new_tokens=2, stop=())
    assert len(calls) >= 2  # and while a graph is captured
