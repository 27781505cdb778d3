"""The choice of a token: what is in the draw, and how often each is drawn."""

import math

import pytest
import torch
from torch.testing import assert_close

from swila.generation import Sampling

LOGITS = [-1.0, 2.0, 0.0, 1.0, -2.0]  # not in order


def frequencies(sampling, logits=LOGITS, n=20000):
    device = torch.get_default_device()
    rows = torch.tensor(logits).expand(n, -1)
    drawn = sampling.draw(rows, torch.Generator(device).manual_seed(0))
    return torch.bincount(drawn, minlength=len(logits)) / n


def among(*tokens, logits=LOGITS):
    """The probabilities of a draw among these tokens alone."""
    left_out = [i for i in range(len(logits)) if i not in tokens]
    return torch.tensor(logits).index_fill(0, torch.tensor(left_out, dtype=torch.long), -math.inf).softmax(0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature(temperature):
    expected = (torch.tensor(LOGITS) / temperature).softmax(0)
    assert_close(frequencies(Sampling(temperature)), expected, rtol=0, atol=0.015)


@pytest.mark.parametrize(("k", "tokens"), [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (5, range(5)), (9, range(5))])
def test_top_k(k, tokens):
    found = frequencies(Sampling(1.0, top_k=k))
    assert_close(found, among(*tokens), rtol=0, atol=0.015)
    assert (found > 0).sum() == len(tokens)


@pytest.mark.parametrize(("p", "tokens"), [(0.01, [1]), (0.6, [1]), (0.65, [1, 3]), (0.86, [1, 3]), (0.9, [1, 2, 3])])
def test_top_p(p, tokens):
    """The probabilities are 0.64, 0.23, 0.09 and less: the token that reaches p is the last in the draw."""
    found = frequencies(Sampling(1.0, top_p=p))
    assert_close(found, among(*tokens), rtol=0, atol=0.015)
    assert (found > 0).sum() == len(tokens)


@pytest.mark.parametrize(("p", "count"), [(0.25, 1), (0.5, 2), (0.51, 3), (0.75, 3), (1.0, 4)])
def test_top_p_that_is_just_reached(p, count):
    """Of four tokens of a quarter each."""
    assert (frequencies(Sampling(1.0, top_p=p), [1.0] * 4, 200) > 0).sum() == count


def test_top_p_is_of_what_the_temperature_and_top_k_leave():
    assert_close(frequencies(Sampling(4.0, top_p=0.3)), torch.eye(5)[1])  # 0.38 at this temperature
    both = frequencies(Sampling(1.0, top_k=2, top_p=0.7))  # 0.73 of two, 0.64 of all
    assert_close(both, torch.eye(5)[1])


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 2e-38, 1e-40, 1e-46, 1e-300])
def test_a_low_temperature_is_greedy(temperature):
    assert_close(frequencies(Sampling(temperature), [x + 50 for x in LOGITS], 50), torch.eye(5)[1])


def test_rows_are_drawn_independently():
    rows = torch.zeros(4000, 2)
    drawn = Sampling(1.0).draw(rows, torch.Generator(torch.get_default_device()).manual_seed(1)).double()
    assert abs(drawn.mean() - 0.5) < 0.03
    assert abs((drawn[1:] * drawn[:-1]).mean() - 0.25) < 0.03


def test_greedy_takes_the_likeliest_of_each_row():
    assert Sampling().draw(torch.tensor([LOGITS, LOGITS[::-1]]), None).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature must be 0 .* got -0.1"),
        ({"temperature": math.nan}, "temperature must be 0 .* got nan"),
        ({"top_k": 0}, "top_k must be at least 1, or None for all tokens, got 0"),
        ({"top_k": True}, "top_k must be at least 1, or None for all tokens, got True"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        ({"top_p": math.nan}, "top_p must be above 0 and at most 1, got nan"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)
