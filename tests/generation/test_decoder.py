"""The decoder that is kept with a model: what a call leaves in it, and rows of any lengths side by side."""

import pytest
import torch

from language_models import tiny, tokens
from swila import generate, prefill
from swila.generation.api import _decoders


def alone(model, prompt, n):
    ids = torch.tensor([prompt])
    out = model.generate(ids, max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=None)
    return out[0, len(prompt) :].tolist()


def test_attention_beyond_a_bound():
    """Keys and values are looked at up to a multiple of 256 tokens: a long row passes it, a short one does not."""
    model = tiny("transformer", num_hidden_layers=2)
    rows = [tokens(250, seed=1).tolist(), tokens(3, seed=2).tolist()]
    assert generate(model, rows, max_new_tokens=12, stop=()).tokens == [alone(model, row, 12) for row in rows]


@pytest.mark.parametrize("name", ["temporal-swila", "hybrid-gdn"])
def test_a_call_leaves_nothing_to_the_next(name):
    model, rows = tiny(name), [tokens(5, seed=1).tolist(), tokens(9, seed=2).tolist()]
    free = generate(model, rows, max_new_tokens=8, stop=()).tokens
    stop = [free[0][2], free[1][4]]
    first = generate(model, rows, max_new_tokens=8, stop=stop)
    decoder = _decoders[model]
    assert all(first.stopped)
    again = generate(model, rows, max_new_tokens=8, stop=stop)
    assert _decoders[model] is decoder
    assert again.tokens == first.tokens
    swapped = generate(model, rows[::-1], max_new_tokens=8, stop=stop)
    assert _decoders[model] is decoder
    assert swapped.tokens == first.tokens[::-1]


def test_more_room_is_made_where_it_is_needed():
    """Without attention too, where only the new tokens need it."""
    model = tiny("swila", num_hidden_layers=1)
    short = generate(model, [1, 2], max_new_tokens=3, stop=()).tokens[0]
    long = generate(model, [1, 2], max_new_tokens=260, stop=()).tokens[0]
    assert len(long) == 260
    assert long[:3] == short


def test_each_sampling_has_its_own_decoder():
    model, prompt = tiny("temporal-swila"), tokens(5).tolist()
    expected = alone(model, prompt, 10)
    drawn = generate(model, prompt, max_new_tokens=10, temperature=3.0, seed=0, stop=()).tokens[0]
    assert drawn != expected
    assert generate(model, prompt, max_new_tokens=10, stop=()).tokens[0] == expected
    few = generate(model, prompt, max_new_tokens=10, temperature=3.0, top_k=1, seed=0, stop=()).tokens[0]
    assert few == expected


def test_autocast_has_its_own_decoder(device):
    """A captured step has the precision it was captured in."""
    model = tiny("temporal-swila")
    state = prefill(model, [1, 2, 3])
    generate(model, state=state, max_new_tokens=2, stop=())
    first = _decoders[model]
    with torch.autocast(device, torch.bfloat16):
        generate(model, state=state, max_new_tokens=2, stop=())
    assert _decoders[model] is not first


def test_padding_with_the_stop_token_is_not_text():
    """Many tokenizers pad with the token that ends a text: a row that is done has one of it."""
    model, rows = tiny("temporal-swila"), [tokens(5, seed=1).tolist(), tokens(9, seed=2).tolist()]
    free = generate(model, rows, max_new_tokens=8, stop=()).tokens
    stop = next(token for token in free[0][:4] if token not in free[1])
    model.config.pad_token_id = stop
    out = generate(model, rows, max_new_tokens=8, stop=stop)
    assert out.tokens == [free[0][: free[0].index(stop) + 1], free[1]]
    assert out.stopped == [True, False]


def test_what_a_row_that_is_done_shows():
    """The padding token, or -1 where the model has none."""
    model, rows = tiny("temporal-swila"), [tokens(5, seed=1).tolist(), tokens(9, seed=2).tolist()]
    free = generate(model, rows, max_new_tokens=8, stop=()).tokens
    stop = next(token for token in free[0][:4] if token not in free[1])
    for given, shown in ((None, -1), (3, 3)):
        model.config.pad_token_id = given
        seen = []
        out = generate(model, rows, max_new_tokens=8, stop=stop, streamer=seen.append)
        whole = out.tokens[0] + [shown] * (8 - len(out.tokens[0]))
        assert torch.stack(seen).T.tolist() == [whole, free[1]]
