"""Reading prompts: tokens of every kind of prompt, in stretches."""

import pytest
import torch

from language_models import VOCABULARY, tiny, tokens, tolerance
from swila import generate, prefill
from swila.generation.prompts import as_tokens, passes


class Tokenizer:
    """Begins some texts with a token, and has a token for each letter."""

    bos_token_id = 1

    def __init__(self, begins):
        self.begins = begins

    def __call__(self, text):
        return {"input_ids": [1] * self.begins + [ord(letter) - ord("a") + 2 for letter in text]}


@pytest.mark.parametrize("begins", [True, False])
def test_a_text_begins_once(begins):
    tokenizer = Tokenizer(begins)
    assert as_tokens("ab", tokenizer) == [[1, 2, 3] if begins else [2, 3]]
    assert as_tokens(["ab", "c"], tokenizer, continued=True) == [[2, 3], [4]]
    tokenizer.bos_token_id = None
    assert as_tokens("ab", tokenizer, continued=True) == [[1, 2, 3] if begins else [2, 3]]


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_ids_outside_the_vocabulary(token):
    with pytest.raises(ValueError, match=f"prompts must hold ids below vocab_size = {VOCABULARY}, got {token}"):
        prefill(tiny("swila"), [[1, 2], [3, token]])


def test_progress():
    seen = []
    prefill(tiny("swila"), [[1] * 10, [2] * 3], chunk_size=4, progress=lambda *at: seen.append(at))
    assert seen == [(4, 10), (8, 10), (10, 10)]


def test_attention_reads_shorter_stretches_after_earlier_tokens():
    for name, stretches in (("swila", [5000]), ("transformer", [4096, 5000])):
        model, seen = tiny(name, num_hidden_layers=1), []
        state = prefill(model, [1] * 5000, progress=lambda *at: seen.append(at))  # noqa: B023
        assert seen == [(5000, 5000)]
        prefill(model, [1] * 5000, state=state, progress=lambda *at: seen.append(at))  # noqa: B023
        assert seen[1:] == [(read, 5000) for read in stretches]


@pytest.mark.parametrize(
    ("rows", "longest", "attends", "earlier", "chunk_size", "expected"),
    [
        (1, 2048, False, 0, None, (1, 16384)),
        (64, 2048, False, 9, None, (64, 2048)),
        (128, 2048, False, 0, None, (128, 1024)),
        (4096, 2048, False, 0, None, (4096, 256)),
        (64, 2048, True, 0, None, (64, 2048)),
        (128, 2048, True, 0, None, (64, 2048)),
        (3, 131072, True, 0, None, (1, 131072)),
        (3, 131073, True, 0, None, (3, 4096)),
        (100, 5000, True, 3000, None, (32, 4096)),
        (100, 5000, True, 2**22, None, (1, 4096)),
        (128, 2048, True, 0, 7, (128, 7)),
        (128, 2048, False, 0, 7, (128, 7)),
    ],
)
def test_passes_that_fit(rows, longest, attends, earlier, chunk_size, expected):
    assert passes(rows, longest, attends, earlier, chunk_size) == expected


@pytest.mark.parametrize("name", ["hybrid-temporal-swila", "fox"])
def test_rows_in_groups(name, monkeypatch):
    """States of groups of rows, of other lengths, are joined: as if all had been read together."""
    model = tiny(name, num_hidden_layers=4 if "hybrid" in name else 1)
    prompts = [tokens(n, seed=n).tolist() for n in (3, 9, 9, 2, 6)]
    whole, seen = prefill(model, prompts), []
    monkeypatch.setattr("swila.generation.prompts.PASS", 18)
    parts = prefill(model, prompts, progress=lambda *at: seen.append(at))
    assert seen == [(3, 9), (7, 9), (9, 9)]
    assert parts.tokens == whole.tokens
    assert parts.cache.get_seq_length() == whole.cache.get_seq_length() == 9
    torch.testing.assert_close(parts.hidden, whole.hidden, **tolerance())
    more = [[5, 6], [], [7], [8, 9, 10], []]
    expected = generate(model, more, state=whole, max_new_tokens=4, stop=(), return_state=True)
    found = generate(model, more, state=parts, max_new_tokens=4, stop=(), return_state=True)
    assert found.tokens == expected.tokens
    monkeypatch.setattr("swila.generation.prompts.CHUNK_SIZE", {True: 8, False: 8})
    again = generate(model, more, state=parts, max_new_tokens=4, stop=(), return_state=True)
    assert again.tokens == expected.tokens
    assert again.state.tokens == expected.state.tokens


def test_a_tensor_of_prompts_is_not_turned_into_lists(monkeypatch):
    model, ids = tiny("swila", num_hidden_layers=1), tokens(2, 7)
    expected = generate(model, ids.tolist(), max_new_tokens=3, stop=()).tokens
    monkeypatch.setattr("swila.generation.prompts.as_tokens", None)
    assert generate(model, ids, max_new_tokens=3, stop=()).tokens == expected
    assert generate(model, ids.int(), max_new_tokens=3, stop=()).tokens == expected
    with pytest.raises(ValueError, match=f"prompts must hold ids below vocab_size = {VOCABULARY}, got 99"):
        prefill(model, torch.tensor([[1, 99]]))


def test_ids_beyond_integers():
    with pytest.raises(ValueError, match=f"ids that are 64-bit integers, got {2**70}"):
        prefill(tiny("swila", num_hidden_layers=1), [[1, 2**70]])


def test_a_mask_of_another_length_is_refused():
    for mask in ([[1]], [[1, 1, 1]], [[1, 1], [1, 1]]):
        with pytest.raises(ValueError, match="attention_mask must be as long as input_ids"):
            as_tokens({"input_ids": [[3, 4]], "attention_mask": mask}, None)
    with pytest.raises(ValueError, match="prompts must have input_ids if they are a mapping, got ids, mask"):
        as_tokens({"ids": [[3, 4]], "mask": [[1, 1]]}, None)


def test_the_order_of_prompts_is_that_of_the_results():
    model = tiny("temporal-swila")
    rows = [tokens(n, seed=n).tolist() for n in (9, 2, 5)]
    whole = generate(model, rows, max_new_tokens=6, stop=(), return_state=True)
    turned = generate(model, rows[::-1], max_new_tokens=6, stop=(), return_state=True)
    assert turned.tokens == whole.tokens[::-1]
    assert turned.state.tokens == whole.state.tokens[::-1] == [11, 8, 15]
    assert turned.state.cache.get_seq_length() == 15
    torch.testing.assert_close(turned.state.hidden, whole.state.hidden.flip(0), rtol=0, atol=1e-3)
