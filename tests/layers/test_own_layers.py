"""Layers that users write themselves."""

import torch
from mixers import HIDDEN, tokens
from torch.testing import assert_close

from swila.layers import MIXERS as CLASSES
from swila.layers import Cache, SequenceMixer


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
