"""What every sequence layer promises: masks, packing, caches, causality, and errors that name what is wrong."""

import copy
import inspect
import pickle

import pytest
import torch
from mixers import HIDDEN, MIXERS, build, random
from torch.testing import assert_close

from swila.layers import MIXERS as CLASSES
from swila.layers import Cache, SequenceMixer, make_mixer, register_mixer, registry
from swila.layers.cache import map_tensors
from swila.layers.packing import pack_by_position
from swila.ops import validation


def tokens(B, T, seed=0):
    return random(B, T, HIDDEN, seed=seed)


@pytest.fixture(params=MIXERS)
def layer(request):
    torch.manual_seed(1)
    return build(request.param).eval()


MASKS = {
    "left": [[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1]],
    "right": [[1, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]],
    "holes": [[1, 0, 1, 1, 0, 0, 1], [0, 1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1, 0]],
}


@pytest.mark.parametrize("mask", MASKS)
def test_padding_changes_nothing(layer, mask):
    x, mask = tokens(3, 7), torch.tensor(MASKS[mask])
    y, _, cache = layer(x, attention_mask=mask, use_cache=True)
    assert (y[mask == 0] == 0).all()
    following = tokens(3, 2, seed=1)
    after, _, _ = layer(following, past_key_values=cache)
    for b in range(3):
        alone, _, own = layer(x[b : b + 1, mask[b] == 1], use_cache=True)
        assert_close(y[b, mask[b] == 1], alone[0])
        assert_close(after[b], layer(following[b : b + 1], past_key_values=own)[0][0])


def test_a_mask_of_the_whole_text_counts_by_its_end(layer):
    x = tokens(2, 5)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    whole, _, _ = layer(x, attention_mask=mask)
    _, _, cache = layer(x[:, :4], attention_mask=mask[:, :4], use_cache=True)
    last, _, _ = layer(x[:, 4:], attention_mask=mask, past_key_values=cache)
    assert_close(last, whole[:, 4:])


def test_one_padded_sequence_alone(layer):
    x, mask = tokens(1, 6), torch.tensor([[0, 0, 1, 1, 1, 1]])
    assert_close(layer(x, attention_mask=mask)[0][:, 2:], layer(x[:, 2:])[0])


def test_packed_is_separate(layer):
    x, bounds = tokens(1, 13), torch.tensor([0, 1, 6, 8, 13])
    y, _, cache = layer(x, cu_seqlens=bounds, use_cache=True)
    more, more_bounds = tokens(1, 9, seed=2), torch.tensor([0, 2, 3, 8, 9])
    z, _, _ = layer(more, cu_seqlens=more_bounds, past_key_values=cache)
    for i in range(4):
        a, b = bounds[i : i + 2]
        alone, _, own = layer(x[:, a:b], use_cache=True)
        assert_close(y[:, a:b], alone)
        a, b = more_bounds[i : i + 2]
        assert_close(z[:, a:b], layer(more[:, a:b], past_key_values=own)[0])


@pytest.mark.parametrize("parts", [[9], [1] * 9, [4, 1, 4], [2, 3, 1, 1, 2]], ids=str)
def test_split_anywhere_is_the_whole(layer, parts):
    x = tokens(2, 9)
    whole, _, none = layer(x)
    assert none is None
    cache, pieces = None, []
    with torch.no_grad():
        for part in x.split(parts, 1):
            y, _, cache = layer(part, past_key_values=cache, use_cache=True)
            pieces.append(y)
    assert_close(torch.cat(pieces, 1), whole)
    assert cache.get_seq_length() == 9


def test_rows_without_a_token_keep_their_state(layer):
    x, more = tokens(3, 4), tokens(3, 3, seed=1)
    _, _, cache = layer(x, use_cache=True)
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 0, 1]])
    y, _, cache = layer(more, attention_mask=mask, past_key_values=cache)
    assert (y[1] == 0).all()
    last = tokens(3, 1, seed=2)
    z, _, _ = layer(last, past_key_values=cache)
    for b in range(3):
        text = torch.cat([x[b], more[b, mask[b] == 1], last[b]])
        assert_close(z[b, 0], layer(text[None])[0][0, -1])


def test_nothing_but_padding(layer):
    assert (layer(tokens(2, 3), attention_mask=torch.zeros(2, 3))[0] == 0).all()


def test_what_is_carried_does_not_hold_the_sequence(layer):
    _, _, cache = layer(tokens(1, 50), use_cache=True)
    for part in cache[0]["conv_state"] or ():
        assert part.untyped_storage().nbytes() == part.numel() * part.element_size()


def test_gradients_through_padding_and_cache(layer):
    x = tokens(2, 6).requires_grad_()
    whole = layer(x)[0].square().sum()
    (expected,) = torch.autograd.grad(whole, x)
    _, _, cache = (first := layer(x[:, :3], use_cache=True))
    second = layer(x[:, 3:], past_key_values=cache)[0]
    (found,) = torch.autograd.grad(first[0].square().sum() + second.square().sum(), x)
    assert_close(found, expected)
    mask = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    (padded,) = torch.autograd.grad(layer(x, attention_mask=mask)[0].square().sum(), x)
    assert_close(padded[1], expected[1])
    assert (padded[0, 0] == 0).all()


def test_causal_and_samples_apart_in_training(layer):
    layer.train()
    x = tokens(2, 8)
    y, _, _ = layer(x)
    changed = x.clone()
    changed[0, 5] += 1
    z, _, _ = layer(changed)
    assert_close(z[0, :5], y[0, :5], rtol=0, atol=1e-12)
    assert_close(z[1], y[1], rtol=0, atol=1e-12)
    assert not torch.allclose(z[0, 5:], y[0, 5:])


def test_every_parameter_is_trained(layer):
    layer.train()
    layer(tokens(2, 12))[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_state_size_is_what_is_carried(layer):
    _, _, cache = layer(tokens(1, 5), use_cache=True)
    state = cache[0]
    if state["recurrent_state"] is not None:
        assert state["recurrent_state"].W.numel() == layer.state_size() == layer.state_size(5)
    else:
        k, v = state["attn_state"][:2]
        assert k.numel() + v.numel() == layer.state_size(5) == 5 * layer.state_size()


def test_cache_can_be_reordered_and_copied(layer):
    x, more = tokens(3, 4), tokens(2, 2, seed=3)
    _, _, cache = layer(x, use_cache=True)
    chosen = cache.batch_select(torch.tensor([2, 0])).map(lambda t: t.detach().clone())
    y, _, _ = layer(more, past_key_values=chosen)
    for i, b in enumerate([2, 0]):
        assert_close(y[i], layer(torch.cat([x[b], more[i]])[None])[0][0, 4:])
    assert cache.get_seq_length() == 4
    assert chosen.get_seq_length() == 6


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
@pytest.mark.parametrize("name", ["swila-temporal", "swila-balanced", "gated-deltanet", "mom", "attention", "fox"])
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


def test_register_mixer(monkeypatch):
    monkeypatch.setattr(registry, "MIXERS", dict(CLASSES))

    class Mine(CLASSES["deltanet"]):
        pass

    register_mixer("mine", Mine)
    assert type(make_mixer("mine", 16)) is Mine
    with pytest.raises(ValueError, match="mixer must be a subclass of SequenceMixer, got"):
        register_mixer("theirs", torch.nn.Linear)
    short = type("Short", (Mine,), {"state_size": lambda self: 3})
    with pytest.raises(ValueError, match=r"state_size must take \(self, length\), got \(self\)"):
        register_mixer("short", short)
    with pytest.raises(ValueError, match="name must be new, got 'kda', which is KimiDeltaAttention"):
        register_mixer("kda", Mine)


@pytest.mark.parametrize("name", CLASSES)
def test_unknown_arguments_are_errors(name):
    with pytest.raises(TypeError, match="use_shot_conv"):
        CLASSES[name](16, use_shot_conv=True)
    with pytest.raises(ValueError, match=f"'use_shot_conv' is not an option of the mixer '{name}'; it has num_heads"):
        make_mixer(name, 16, use_shot_conv=True)
    with pytest.raises(TypeError, match="attn_mask"):
        make_mixer(name, 16)(torch.zeros(1, 2, 16), attn_mask=None)


@pytest.mark.parametrize("name", CLASSES)
def test_options_of_the_wrong_kind_are_errors(name):
    """By what the signature says: flags, counts and weights of every layer, those it adds later too."""
    needed = {"temporal_noise": {"temporal": True}, "temporal_bias": {"temporal": True}}
    for parameter in inspect.signature(CLASSES[name]).parameters.values():
        kind = str(parameter.annotation)
        bad = ["yes", 1] if "bool" in kind else [2.5, 0, True, "2"] if kind.startswith("int") else []
        if parameter.name.startswith("balance") or parameter.name == "norm_eps":
            bad = [-1, float("nan"), float("inf"), "1"]
        if parameter.name in ("hidden_size", "layer_idx"):
            continue
        for value in bad:
            with pytest.raises(ValueError, match=f"{parameter.name} must be .*got"):
                make_mixer(name, 16, **{parameter.name: value, **needed.get(parameter.name, {})})


@pytest.mark.parametrize("name", CLASSES)
def test_docstring_names_every_argument(name):
    document = f"{inspect.getdoc(CLASSES[name])}\n{inspect.getdoc(CLASSES[name].__init__)}"
    for parameter in inspect.signature(CLASSES[name]).parameters:
        assert f"    {parameter}: " in document


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"hidden_states": torch.zeros(2, 3, 5)},
            r"hidden_states must be \[B, T, hidden_size\] with hidden_size 16, got",
        ),
        (
            {"hidden_states": torch.zeros(0, 3, 16)},
            r"hidden_states must have at least one row and one token, got shape \[0,",
        ),
        (
            {"hidden_states": torch.zeros(2, 0, 16)},
            r"hidden_states must have at least one row and one token, got shape \[2,",
        ),
        ({"hidden_states": [[0.0]]}, "hidden_states must be a torch.Tensor, got list"),
        ({"attention_mask": [[1, 1, 1]] * 2}, r"attention_mask must be a torch.Tensor \[B, T\], got list"),
        ({"attention_mask": torch.ones(2, 2)}, r"attention_mask must be \[B, T\] = \[2, 3\]"),
        ({"attention_mask": torch.ones(2, 1, 3, 3)}, r"got shape \[2, 1, 3, 3\]"),
        ({"cu_seqlens": torch.tensor([0, 3])}, "hidden_states must have batch size 1 with cu_seqlens, got 2"),
        (
            {
                "hidden_states": torch.zeros(1, 3, 16),
                "cu_seqlens": torch.tensor([0, 3]),
                "attention_mask": torch.ones(1, 3),
            },
            "attention_mask must be None with cu_seqlens",
        ),
        *(
            (
                {"hidden_states": torch.zeros(1, 3, 16), "cu_seqlens": torch.tensor(bounds)},
                rf"cu_seqlens must {words}, got \[{', '.join(map(str, bounds))}\]",
            )
            for bounds, words in (
                ([0, 2], "start at 0 and end at T = 3"),
                ([0, 2, 4], "start at 0 and end at T = 3"),
                ([0, 2, 1, 3], r"increase strictly \(no empty sequence\)"),
                ([0, 2, 2, 3], r"increase strictly \(no empty sequence\)"),
            )
        ),
        (
            {"hidden_states": torch.zeros(1, 3, 16), "cu_seqlens": torch.tensor([0.0, 3])},
            "cu_seqlens must be int32 or int64",
        ),
        (
            {"attention_mask": torch.tensor([[0.0, 0, 0], [-1e9, 0, 0]])},
            "attention_mask must be 1 for a token and 0 for",
        ),
        ({"hidden_states": torch.zeros(1, 3, 16), "cu_seqlens": [0, 3]}, "cu_seqlens must be a torch.Tensor, got list"),
        ({"output_attentions": True}, "output_attentions must be False"),
        ({"use_cache": True, "attention_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])}, "at least one token"),
    ],
)
@pytest.mark.parametrize("name", ["deltanet", "attention"])
def test_mistakes_in_a_call(name, options, message, monkeypatch):
    monkeypatch.setattr(validation, "_value_checks", "always")
    here = {k: v.to(torch.get_default_device()) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    with pytest.raises(ValueError, match=message):
        build(name).float()(**({"hidden_states": torch.zeros(2, 3, 16)} | here))


def test_cache_of_another_batch():
    layer = build("swila")
    _, _, cache = layer(tokens(2, 3), use_cache=True)
    with pytest.raises(ValueError, match="past_key_values must have a row for each of 3 sequences, got 2"):
        layer(tokens(3, 1), past_key_values=cache)


def test_layers_share_a_cache_by_their_index():
    first, second = build("swila", layer_idx=0).eval(), build("attention", layer_idx=1).eval()
    x, cache = tokens(1, 6), Cache()
    whole = second(first(x)[0])[0]
    pieces = [second(first(part, past_key_values=cache)[0], past_key_values=cache)[0] for part in x.split(2, 1)]
    assert_close(torch.cat(pieces, 1), whole)
    assert len(cache) == 2
    with pytest.raises(IndexError, match="layer 5"):
        cache[5]


def test_layers_without_an_index_cannot_share_a_cache():
    x, first, second = tokens(1, 3), build("swila").eval(), build("swila").eval()
    _, _, cache = first(x, use_cache=True)
    first(x, past_key_values=cache)
    copied = pickle.loads(pickle.dumps(cache.map(lambda t: t.detach())))
    for mine in (cache, cache.map(torch.clone), copied):
        with pytest.raises(ValueError, match="layer_idx must be given, a different one to each layer"):
            second(x, past_key_values=mine)


def test_an_entry_of_a_cache_belongs_to_one_layer():
    x, first, second = tokens(1, 3), build("swila", layer_idx=0).eval(), build("swila", layer_idx=0).eval()
    second.load_state_dict(first.state_dict())
    _, _, cache = first(x, use_cache=True)
    for mine in (cache, cache.map(torch.clone), cache.batch_select(torch.tensor([0])), copy.deepcopy(cache)):
        with pytest.raises(ValueError, match=r"layer_idx must be different for each layer .* got 0 for a second layer"):
            second(x, past_key_values=mine)
    with pytest.raises(ValueError, match="layer_idx must be given"):
        build("swila")(x, past_key_values=cache)
    expected = first(x, past_key_values=cache.map(torch.clone))[0]
    for handed in (cache.released(), pickle.loads(pickle.dumps(cache.map(lambda t: t.detach())))):
        assert_close(second(x, past_key_values=handed)[0], expected)
        with pytest.raises(ValueError, match="layer_idx must be different"):
            first(x, past_key_values=handed)  # now it is the second layer's
    assert_close(first(x, past_key_values=cache)[0], expected)  # and this one still the first's
    del first
    with pytest.raises(ValueError, match="layer_idx must be different"):
        second(x, past_key_values=cache)


def test_a_copied_cache_belongs_to_the_same_layer():
    """To the layer itself, or to its copy where both are copied together; and the two caches go separate ways."""
    x, layer = tokens(1, 3), build("swila").eval()
    _, _, cache = layer(x, use_cache=True)
    copied = copy.deepcopy(cache)
    expected = layer(x, past_key_values=cache)[0]
    assert_close(layer(x, past_key_values=copied)[0], expected)
    other, its = copy.deepcopy((layer, copied))
    assert_close(other(x, past_key_values=its)[0], layer(x, past_key_values=copied)[0])


def test_a_state_is_handed_over_to_a_layer_without_an_index():
    x, first, second = tokens(1, 3), build("swila").eval(), build("swila").eval()
    second.load_state_dict(first.state_dict())
    _, _, cache = first(x, use_cache=True)
    handed = cache.released()
    assert_close(second(x, past_key_values=handed)[0], first(x, past_key_values=cache)[0])
    with pytest.raises(ValueError, match="layer_idx must be given"):
        first(x, past_key_values=handed)


def test_a_call_that_fails_takes_nothing():
    x, cache = tokens(1, 3), Cache()
    with pytest.raises(ValueError, match="attention_mask must be"):
        build("swila", layer_idx=0)(x, attention_mask=torch.ones(1, 9), past_key_values=cache)
    build("swila", layer_idx=0)(x, past_key_values=cache)


class Mean(CLASSES["deltanet"].__mro__[2]):
    """A recurrent layer of one's own, whose state is not a SwitchingState."""

    def __init__(self, hidden_size, layer_idx=None):
        options = {"use_short_conv": False, "conv_size": 2, "conv_bias": False, "output_gate": None, "norm_eps": 1e-5}
        super().__init__(hidden_size, 1, 4, 4, layer_idx=layer_idx, backend="auto", **options)

    def recur(self, x, q, k, v, state, context):
        before = v.new_zeros(v[:, 0].shape) if state is None else state[0]
        total = before.unsqueeze(1) + v.cumsum(1)
        return total, (total[:, -1],) if context.return_state else None


def test_layers_of_ones_own_have_states_of_their_own():
    layer, x = Mean(HIDDEN).double(), tokens(2, 6)
    pieces, cache = [], Cache()
    for part in x.split(2, 1):
        pieces.append(layer(part, past_key_values=cache)[0])
    assert_close(torch.cat(pieces, 1), layer(x)[0])

    class Extra(CLASSES["attention"]):
        def extras(self, x):
            return (x[..., :1],)

    layer = Extra(HIDDEN, num_heads=2).double()
    _, _, cache = layer(x[:, :4], use_cache=True)
    assert_close(layer(x[:, 4:], past_key_values=cache)[0], layer(x)[0][:, 4:])


class Sum(SequenceMixer):
    """A layer of one's own with nothing but what it must have."""

    def mix(self, x, past, context):
        total = x.cumsum(1) + (past["recurrent_state"].unsqueeze(1) if past else 0.0)
        return total, {"recurrent_state": total[:, -1]} if context.return_state else None


def test_a_step_of_ones_own_layer_leaves_rows_that_are_done_alone():
    layer, x = Sum(HIDDEN), tokens(2, 5)
    _, _, cache = layer(x[:, :4], use_cache=True)
    state = layer.decoding_state(cache[0], 1)
    y = layer.step(x[:, 4:], state, torch.tensor([True, False]))
    assert_close(y[0], layer(x)[0][0, 4:])
    assert_close(state["recurrent_state"], torch.stack([x[0].sum(0), x[1, :4].sum(0)]))


def test_a_step_of_a_recurrence_of_ones_own_that_writes_over_nothing():
    layer, x = Mean(HIDDEN).double(), tokens(2, 6)
    _, _, cache = layer(x[:, :4], use_cache=True)
    state = layer.decoding_state(cache[0], 1)
    done = state["recurrent_state"][0][1].clone()
    for t in (4, 5):
        y = layer.step(x[:, t : t + 1], state, torch.tensor([True, False]))
        assert_close(y[0], layer(x)[0][0, t : t + 1])
    assert torch.equal(state["recurrent_state"][0][1], done)


def test_rows_of_a_batch_begin_sequences_whatever_their_first_position():
    packed = pack_by_position(tokens(2, 3), torch.tensor([[0, 1, 0], [5, 6, 7]]))
    assert packed.cu_seqlens.tolist() == [0, 2, 3, 6]


def test_two_layers_with_one_index_in_an_empty_cache():
    x, cache = tokens(1, 3), Cache()
    build("deltanet", layer_idx=2)(x, past_key_values=cache)
    with pytest.raises(ValueError, match="layer_idx must be different for each layer that shares a cache, got 2"):
        build("deltanet", layer_idx=2)(x, past_key_values=cache)


@pytest.mark.parametrize("writer", MIXERS)
def test_states_of_other_layers_are_refused(writer, layer):
    """Whatever two layers differ in, the one does not take the other's state for its own, nor die of it."""
    _, _, cache = build(writer, layer_idx=0)(tokens(2, 5), use_cache=True)
    layer.layer_idx, form = 0, build(writer).state_form()
    if form == layer.state_form():
        layer(tokens(2, 1), past_key_values=cache.released())
        return
    with pytest.raises(
        ValueError, match=r"past_key_values holds the state of another layer in entry 0: .* needs .* got"
    ):
        layer(tokens(2, 1), past_key_values=cache.released())


@pytest.mark.parametrize("layer_idx", [None, 0])
def test_what_is_no_cache_is_refused(layer_idx):
    transformers = pytest.importorskip("transformers")
    layer = build("swila", layer_idx=layer_idx)
    for other in ((), [], ((torch.zeros(1), torch.zeros(1)),), {}, transformers.DynamicCache()):
        with pytest.raises(
            ValueError, match=rf"past_key_values must be a swila.layers.Cache .* got {type(other).__name__}"
        ):
            layer(tokens(1, 3), past_key_values=other)


def test_a_mask_has_the_length_of_the_tokens_or_of_the_text():
    layer, x = build("attention").eval(), tokens(2, 5)
    with pytest.raises(
        ValueError, match=r"attention_mask must be \[B, T\] = \[2, 5\] with 0 for padding, got shape \[2, 7\]"
    ):
        layer(x, attention_mask=torch.ones(2, 7))
    _, _, cache = layer(x[:, :3], use_cache=True)
    for columns in (1, 3, 4, 6, 9):
        with pytest.raises(ValueError, match=r"= \[2, 2\], or \[2, 5\] for the text so far, .* got shape \[2, \d\]"):
            layer(x[:, 3:], attention_mask=torch.ones(2, columns), past_key_values=cache)
    whole = layer(x)[0][:, 3:]
    for columns in (2, 5):
        assert_close(
            layer(x[:, 3:], attention_mask=torch.ones(2, columns), past_key_values=cache.map(torch.clone))[0], whole
        )


def test_cache_in_the_way_of_flash_linear_attention():
    """A cache that only knows that library's protocol: a list of dicts, grown by update."""

    class TheirCache(list):
        def update(self, recurrent_state=None, attn_state=None, conv_state=None, ffn_state=None, layer_idx=0, offset=1):
            state = {"recurrent_state": recurrent_state, "attn_state": attn_state, "conv_state": conv_state}
            if len(self) <= layer_idx:
                self.append(state)
            self[layer_idx] = map_tensors(lambda t: t, state)

    layer, x, cache = build("swila-all", layer_idx=0).eval(), tokens(2, 6), TheirCache()
    pieces = [layer(part, past_key_values=cache)[0] for part in x.split(2, 1)]
    assert_close(torch.cat(pieces, 1), layer(x)[0])
    with pytest.raises(ValueError, match=r"must be a swila.layers.Cache for Attention, got TheirCache, which"):
        build("attention", layer_idx=0)(x, past_key_values=TheirCache())
