"""On a GPU, a token is one replay of a graph."""

import pytest
import torch

from language_models import NAMES, tiny, tokens
from swila import generate, prefill
from swila.generation import Sampling
from swila.generation.api import _decoder


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
