"""The demonstration shows what it says."""

import torch

from swila.experiments.switching_regression import Stream, Trace, follow, make_stream, summarize


def test_stream_is_what_it_says():
    stream = make_stream(B=4, T=200, D=8, contexts=3, run=10, noise=0.0)
    switch = stream.context.diff() != 0
    assert torch.equal(stream.age[:, 1:] == 0, switch)
    assert (stream.age.diff()[~switch] == 1).all()
    assert stream.age.max() < 15
    torch.testing.assert_close(stream.keys.norm(dim=-1), torch.ones(4, 200))
    for b in range(4):
        tokens = stream.context[b] == 0
        fit = torch.linalg.lstsq(stream.keys[b, tokens], stream.values[b, tokens]).solution
        torch.testing.assert_close(stream.keys[b, tokens] @ fit, stream.values[b, tokens], atol=1e-3, rtol=1e-3)


def test_same_seed_same_numbers():
    a, b = (follow(make_stream(B=2, T=60, seed=3), 2, seed=3) for _ in range(2))
    assert torch.equal(a.error, b.error)


def test_a_mixture_remembers_what_one_regressor_relearns():
    stream = make_stream(B=16, T=768, seed=5)
    one, four = (summarize(stream, follow(stream, mixtures, seed=5)) for mixtures in (1, 4))
    assert one["4-7"] > 1.0
    assert four["4-7"] < 0.4
    assert four["all"] < 0.5 * one["all"]


def test_regressors_do_not_start_from_the_maps():
    """With one map and one regressor in a sequence, weights of the same random numbers would know it from the start."""
    stream = make_stream(B=64, T=1, D=8, contexts=1, noise=0.0, seed=3)
    assert follow(stream, 1, seed=3).error.mean() > 0.95


def test_errors_are_those_of_the_second_half():
    age, error = torch.tensor([[0, 3, 4, 16, 0, 3, 4, 16]]), torch.tensor([[9.0, 9, 9, 9, 1, 2, 3, 4]])
    empty = torch.empty(1, 8, 1)
    found = summarize(Stream(empty, empty, torch.zeros_like(age), age), Trace(error, empty))
    assert found == {"all": 2.5, "0-3": 1.5, "4-7": 3.0, "16+": 4.0}
