"""The short convolution against torch's own."""

import pytest
import torch
from naive import conv
from torch.testing import assert_close

from swila.layers.short_conv import ShortConvolution


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("activation", ["silu", None])
def test_is_a_causal_convolution(width, activation):
    module = ShortConvolution(5, width, bias=True, activation=activation).double()
    torch.nn.init.normal_(module.bias)
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    assert_close(module(x)[0], conv(module, x))


@pytest.mark.parametrize("lengths", [[1, 1, 1], [4, 1, 2, 6], [3]], ids=str)
def test_packed_with_states(lengths):
    module, C = ShortConvolution(3, 4).double(), 3
    x, state = torch.randn(1, sum(lengths), C).double(), torch.randn(len(lengths), 3, C).double()
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    y, last = module(x, state, bounds, return_state=True)
    for i, part in enumerate(x.split(lengths, 1)):
        expected, own = module(part, state[i : i + 1], return_state=True)
        assert_close(y[:, bounds[i] : bounds[i + 1]], expected)
        assert_close(last[i : i + 1], own)
        assert_close(own[0], torch.cat([state[i], part[0]])[-3:])


def test_streams_share_the_filters():
    module = ShortConvolution(3, 2, bias=True)
    torch.nn.init.normal_(module.bias)
    x = torch.randn(2, 5, 6)
    assert_close(module(x)[0], torch.cat([module(half)[0] for half in x.split(3, -1)], -1))


def test_bad_options():
    with pytest.raises(ValueError, match="activation must be 'silu' or None, got 'relu'"):
        ShortConvolution(3, 2, activation="relu")
