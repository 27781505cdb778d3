"""Compiled blocks: how often they are compiled, with torch's compiler replaced by one that runs the graph."""

import pytest
import torch
from small_runs import LENGTH, VOCABULARY, model_of, small

from swila.pretraining import parallel
from swila.pretraining.parallel import compile_blocks
from swila.training.compilation import compiling

pytestmark = pytest.mark.unpoisoned


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that were compiled."""
    found = []

    def keep(graph, inputs):
        found.append(graph)
        return graph.forward

    compile = torch.compile
    monkeypatch.setattr(parallel.torch, "compile", lambda *args, **options: compile(*args, backend=keep, **options))
    yield found
    torch._dynamo.reset()


def losses_of(model, batches):
    with compiling():
        return [
            model(tokens, shift_labels=tokens, cu_seqlens=bounds, use_cache=False).loss.item()
            for tokens, bounds in batches
        ]


def packed_batches(*documents):
    tokens = torch.randint(VOCABULARY, (1, 4 * LENGTH), generator=torch.Generator().manual_seed(0))
    return [(tokens, torch.linspace(0, 4 * LENGTH, number + 1).round().int()) for number in documents]


@pytest.mark.parametrize("mixer", ["swila", "deltanet", "attention"])
def test_any_number_of_documents_is_compiled_twice(graphs, mixer):
    model = model_of(small("data.packing=documents", mixer=mixer))
    expected = losses_of(model, packed_batches(2, 3, 5, 6, 9))
    compile_blocks(model, packed=True)
    assert losses_of(model, packed_batches(2, 3)) == pytest.approx(expected[:2])
    compiled = len(graphs)
    assert compiled > 0
    assert losses_of(model, packed_batches(5, 6, 9)) == pytest.approx(expected[2:])
    if mixer != "attention":  # its rows have the length of the longest document
        assert len(graphs) == compiled == 2  # layers with equal shapes share a graph


def test_sequences_of_one_length_are_compiled_once(graphs):
    model = model_of(small(mixer="swila"))
    compile_blocks(model, packed=False)
    tokens = torch.randint(VOCABULARY, (2, LENGTH))
    losses_of(model, [(tokens, None)] * 3)
    assert len(graphs) == 1
