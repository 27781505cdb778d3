"""The cache of every sequence layer: its contents, its owner, and which layers may use it."""

import copy
import pickle

import pytest
import torch
from mixers import MIXERS, build, tokens
from torch.testing import assert_close

from swila.layers import Cache
from swila.layers.cache import map_tensors


def test_what_is_carried_does_not_hold_the_sequence(layer):
    _, _, cache = layer(tokens(1, 50), use_cache=True)
    for part in cache[0]["conv_state"] or ():
        assert part.untyped_storage().nbytes() == part.numel() * part.element_size()


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
        with pytest.raises(ValueError, match="layer_idx must be given, and differ between layers"):
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
