"""On a GPU, a token is one replay of a graph, and so is a short prompt that is not the first of its form."""

import pytest
import torch

from language_models import NAMES, tiny, tokens, tolerance
from swila import generate, prefill
from swila.generation import Sampling, prompt_graphs
from swila.generation.api import _decoder
from swila.generation.prompt_graphs import PromptGraphs


@pytest.fixture(autouse=True)
def _on_a_gpu(device):
    if device == "cpu":
        pytest.skip("needs --device cuda")


@pytest.mark.unpoisoned
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_steps_neither_allocate_nor_wait(name, watched):
    model = tiny(name)
    state = prefill(model, tokens(3, 20))
    decoder = _decoder(model, state, 100, Sampling(1.0, 10, 0.9), (2,), False)
    seen = []
    for _ in range(2):
        decoder.load(state, seed=0)
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        torch.cuda.set_sync_debug_mode("error" if seen else "default")
        try:
            decoder.run(100, seen.append if watched else None)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        made = torch.cuda.memory_stats()["allocation.all.allocated"] - before
        seen.append(None)
    assert made == 0


def test_a_longer_text_gets_a_larger_graph():
    model = tiny("transformer")
    prompt = tokens(200).tolist()
    out = generate(model, prompt, max_new_tokens=300, stop=()).tokens[0]
    one_by_one = []
    state = prefill(model, prompt)
    for _ in range(300):
        step = generate(model, state=state, max_new_tokens=1, stop=(), return_state=True)
        one_by_one += step.tokens[0]
        state = step.state
    assert out == one_by_one


@pytest.mark.parametrize("lengths", [[128], [100], [40, 3, 90]])
@pytest.mark.parametrize("name", NAMES)
def test_prompts_are_replayed(name, lengths, monkeypatch):
    """Bit for bit what the first pass computed, without waiting for the device; and what a pass by row computes."""
    model = tiny(name)
    rows = [tokens(n, seed=n).tolist() for n in lengths]
    other = [tokens(n, seed=n + 1).tolist() for n in lengths]
    read, modes = PromptGraphs.read, ["default", "default", "error", "error"]

    def watched(*call):
        torch.cuda.set_sync_debug_mode(modes.pop(0))
        try:
            return read(*call)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(PromptGraphs, "read", watched)
    first, second, _, again = (prefill(model, prompts) for prompts in (rows, rows, other, rows))
    launches = prompt_graphs.is_capturable(model)
    assert launches == (not model.model.attends and "mom" not in name)
    assert len(modes) == (0 if launches else 4)
    for state in (second, again):
        assert torch.equal(state.hidden, first.hidden)
        for i in range(len(first.cache)):
            torch.testing.assert_close(state.cache[i], first.cache[i], rtol=0, atol=0)
    if launches:
        (one,) = prompt_graphs._graphs[model].passes.values()
        assert one.graph is not None
        assert one.uses == 4
    monkeypatch.setattr("swila.generation.prompts.prompt_graphs", lambda model: None)
    expected = prefill(model, rows)
    torch.testing.assert_close(first.hidden, expected.hidden, **tolerance(4))
    for i in range(len(first.cache)):
        torch.testing.assert_close(first.cache[i], expected.cache[i], **tolerance(8))


def test_a_text_is_continued_by_replays():
    model = tiny("temporal-swila")
    turns = [tokens(n, seed=n).tolist() for n in (70, 80, 90, 100)]
    state, out = None, []
    for turn in turns:
        step = generate(model, turn, state=state, max_new_tokens=5, stop=(), return_state=True)
        state, out = step.state, [*out, *step.tokens]
    continued = [one for form, one in prompt_graphs._graphs[model].passes.items() if form.dtypes is not None]
    assert [one.uses for one in continued] == [3]
    assert continued[0].graph is not None
    text, state = [], None
    for turn, found in zip(turns, out, strict=True):
        text += turn
        assert generate(model, text, max_new_tokens=5, stop=()).tokens == [found]
        text += found
