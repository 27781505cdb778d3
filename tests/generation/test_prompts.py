"""Reading prompts: tokens of every kind of prompt, in stretches."""

import pytest
import torch

from language_models import VOCABULARY, tiny, tokens
from swila import generate, prefill
from swila.generation.prompts import as_tokens


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


@pytest.mark.parametrize(("name", "stretches"), [("swila", [5000]), ("transformer", [4096, 5000])])
def test_attention_reads_shorter_stretches(name, stretches):
    seen = []
    prefill(tiny(name, num_hidden_layers=1), [1] * 5000, progress=lambda *at: seen.append(at))
    assert seen == [(read, 5000) for read in stretches]


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
