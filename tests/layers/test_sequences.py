"""Every sequence layer with masks, packed sequences and splits gives what it gives for each sequence alone."""

import pytest
import torch
from mixers import build, tokens
from torch.testing import assert_close

from swila.layers.packing import pack_by_position

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


def test_rows_of_a_batch_begin_sequences_whatever_their_first_position():
    packed = pack_by_position(tokens(2, 3), torch.tensor([[0, 1, 0], [5, 6, 7]]))
    assert packed.cu_seqlens.tolist() == [0, 2, 3, 6]


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
