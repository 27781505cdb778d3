"""On a GPU, a token is one replay of a graph, and so is a short prompt that is not the first of its form."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from language_models import NAMES, tiny, tokens, tolerance
from swila import generate, prefill
from swila.generation import Sampling, prompt_graphs
from swila.generation.api import _decoder
from swila.generation.prompt_graphs import PromptGraphs, PromptPass


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


def test_a_prompt_is_captured_in_any_thread():
    """Handles of libraries belong to a thread: what the first thread made does not serve the second."""
    model = tiny("temporal-swila")
    expected = prefill(model, tokens(128).tolist())
    found = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(prefill(model, tokens(128).tolist())))
        thread.start()
        thread.join()
    found.append(prefill(model, tokens(128).tolist()))
    (one,) = prompt_graphs._graphs[model].passes.values()
    assert one.graph is not None
    assert len(found) == 3
    assert all(torch.equal(state.hidden, expected.hidden) for state in found)


def test_a_capture_that_fails_leaves_the_device_usable(monkeypatch):
    model = tiny("swila")
    compute = PromptPass._compute

    def waits(one):
        compute(one)
        if torch.cuda.is_current_stream_capturing():
            one.hidden.sum().item()

    monkeypatch.setattr(PromptPass, "_compute", waits)
    first = prefill(model, tokens(128).tolist())
    with pytest.warns(UserWarning, match="a capture failed"):
        second = prefill(model, tokens(128).tolist())
    assert torch.randn(8, device="cuda").isfinite().all()
    again = prefill(model, tokens(128).tolist())
    assert torch.equal(first.hidden, second.hidden)
    assert torch.equal(first.hidden, again.hidden)
    assert len(generate(model, tokens(9).tolist(), max_new_tokens=4, stop=()).tokens[0]) == 4


def test_graphs_that_are_left_after_others_are_freed(monkeypatch):
    """Also if decoders, which have streams of their own, come and go between them."""
    model = tiny("temporal-swila")
    lengths = [64 * n for n in range(1, 9)]
    expected = {n: prefill(model, tokens(n).tolist()).hidden for n in lengths}
    for n in lengths:
        prefill(model, tokens(n).tolist())
    graphs = prompt_graphs._graphs[model]
    held = sum(one.bytes for one in graphs.passes.values())
    monkeypatch.setattr(prompt_graphs, "MOST_BYTES", held // 2)
    for turn in range(40):
        prompt = tokens(5, seed=turn).tolist()
        generate(model, [prompt] * (1 + turn % 3), max_new_tokens=3, temperature=1.0, stop=())
    assert 0 < sum(one.graph is not None for one in graphs.passes.values()) < len(lengths)
    torch.cuda.empty_cache()
    for n in lengths:
        assert torch.equal(prefill(model, tokens(n).tolist()).hidden, expected[n])


ENDING = """
import torch
from language_models import tiny, tokens
from swila import generate

model = tiny(NAME).to("cuda")
for _ in range(2):
    generate(model, tokens(100).tolist(), max_new_tokens=5, stop=(), compile=True)
for block in model.model.layers:
    block.forward = torch.compile(block.forward, dynamic=False)
with torch.no_grad():
    model.model(tokens(2, 64).to("cuda"), use_cache=False)
"""


@pytest.mark.parametrize("name", ["swila", "transformer"])
def test_a_process_with_graphs_ends_cleanly(name):
    """Graphs, their memory and compiled blocks are still there when the interpreter ends."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-c", ENDING.replace("NAME", repr(name))]
    ran = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
