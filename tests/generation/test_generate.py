"""``swila.generate``: the tokens of transformers' generate, from any batch, stopped and continued anywhere."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch.testing import assert_close

from language_models import NAMES, VOCABULARY, tiny, tokens, tolerance
from swila import GenerationState, generate, prefill
from swila.generation import Sampling
from swila.generation.api import _decoders
from swila.generation.decoder import rounded_up

LENGTHS = (5, 17, 1, 9)


def prompts():
    return [tokens(n, seed=n).tolist() for n in LENGTHS]


@pytest.fixture(params=NAMES)
def model(request):
    return tiny(request.param)


def by_transformers(model, prompt, n):
    ids = torch.tensor([prompt])
    out = model.generate(ids, max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=None)
    return out[0, len(prompt) :].tolist()


def test_a_batch_of_prompts_gives_what_transformers_gives_of_each(model):
    out = generate(model, prompts(), max_new_tokens=14, stop=())
    assert out.tokens == [by_transformers(model, prompt, 14) for prompt in prompts()]
    assert out.stopped == [False] * 4
    assert out.texts is None
    assert out.state is None


def test_rows_that_are_done_keep_their_state(model):
    free = generate(model, prompts(), max_new_tokens=14, stop=()).tokens
    stop = [free[0][3], free[2][6]]
    out = generate(model, prompts(), max_new_tokens=14, stop=stop, return_state=True)
    for i, prompt in enumerate(prompts()):
        ends = [n for n, token in enumerate(free[i]) if token in stop]
        assert out.tokens[i] == (free[i][: ends[0] + 1] if ends else free[i])
        assert out.stopped[i] == bool(ends)
        alone = prefill(model, prompt + out.tokens[i])
        assert out.state[i].tokens == alone.tokens
        assert_close(out.state[i].hidden, alone.hidden, **tolerance(2))
    assert len({len(row) for row in out.tokens}) > 1
    # and go on from there as if they were alone
    more = generate(model, state=out.state, max_new_tokens=5, stop=())
    for i, prompt in enumerate(prompts()):
        assert more.tokens[i] == by_transformers(model, prompt + out.tokens[i], 5)


def test_frozen_rows_are_frozen_bit_for_bit(model):
    before = prefill(model, prompts())
    states = model.model.decoding_states(before.cache, 32)
    old = copy.deepcopy(states)
    alive = torch.tensor([True, False, True, False])
    with torch.no_grad():
        model.model.step(torch.tensor([3, 4, 5, 6]), states, alive)
    for state, was in zip(states, old, strict=True):
        changed = 0
        for part in ("recurrent_state", "conv_state"):
            for new, same in zip(state.get(part) or (), was.get(part) or (), strict=True):
                if new is not None:
                    assert torch.equal(new[1], same[1])
                    assert torch.equal(new[3], same[3])
                    changed += not torch.equal(new[0], same[0])
        if state.get("attn_state") is not None:
            assert (state["attn_state"][-1] - was["attn_state"][-1]).tolist() == [1, 0, 1, 0]
            changed += 1
        assert changed


def test_prompts_in_stretches(model):
    whole = prefill(model, prompts())
    for chunk_size in (1, 4, 16):
        parts = prefill(model, prompts(), chunk_size=chunk_size)
        assert parts.tokens == whole.tokens == list(LENGTHS)
        assert_close(parts.hidden, whole.hidden, **tolerance(2))
    first = prefill(model, [row[:1] for row in prompts()])
    second = prefill(model, [row[1:] for row in prompts()], state=first)  # nothing is left of one
    assert_close(second.hidden, whole.hidden, **tolerance(2))
    assert second.tokens == list(LENGTHS)
    assert first.tokens == [1] * 4


def test_one_state_serves_many_prompts(model):
    document, questions = tokens(20, seed=8).tolist(), prompts()
    state = prefill(model, document)
    out = generate(model, questions, state=state, max_new_tokens=6, stop=())
    assert out.tokens == [by_transformers(model, document + question, 6) for question in questions]
    assert len(state) == 1
    assert state.tokens == [20]


def test_seeds(model):
    drawn = {"max_new_tokens": 12, "temperature": 1.0, "stop": ()}
    first = generate(model, prompts(), seed=3, **drawn).tokens
    assert generate(model, prompts(), seed=3, **drawn).tokens == first
    assert generate(model, prompts(), seed=4, **drawn).tokens != first
    torch.manual_seed(5)
    unseeded = generate(model, prompts(), **drawn).tokens
    assert generate(model, prompts(), **drawn).tokens != unseeded
    torch.manual_seed(5)
    assert generate(model, prompts(), **drawn).tokens == unseeded


def test_draws_have_the_probabilities_they_should():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])
    generator = torch.Generator().manual_seed(0)

    def frequencies(sampling, n=20000):
        return torch.bincount(sampling.draw(logits.expand(n, -1), generator), minlength=5) / n

    assert_close(frequencies(Sampling(1.0)), logits.softmax(0), rtol=0, atol=0.015)
    assert_close(frequencies(Sampling(2.0)), (logits / 2).softmax(0), rtol=0, atol=0.015)
    two = torch.cat([logits[:2].softmax(0), torch.zeros(3)])
    assert_close(frequencies(Sampling(1.0, top_k=2)), two, rtol=0, atol=0.015)
    assert_close(frequencies(Sampling(1.0, top_p=0.8)), two, rtol=0, atol=0.015)
    assert_close(frequencies(Sampling(1.0, top_p=0.01)), torch.eye(5)[0])
    assert Sampling().draw(logits[None], None).tolist() == [0]


class Listener:
    """Transformers' protocol of a streamer."""

    def __init__(self):
        self.got, self.ended = [], False

    def put(self, value):
        self.got.append(value.tolist())

    def end(self):
        self.ended = True


def test_streaming(model):
    listener = Listener()
    stop = generate(model, prompts()[0], max_new_tokens=10, stop=()).tokens[0][6]
    out = generate(model, prompts()[0], max_new_tokens=10, stop=stop, streamer=listener)
    assert listener.got[0] == [prompts()[0]]
    assert [token for (token,) in listener.got[1:]] == out.tokens[0]
    assert listener.ended
    listener = Listener()
    out = generate(model, prompts(), max_new_tokens=4, stop=(), streamer=listener)
    assert torch.tensor(listener.got[1:]).T.tolist() == out.tokens


def test_kinds_of_prompts():
    model = tiny("swila")
    expected = generate(model, [[3, 4, 5]], max_new_tokens=4, stop=()).tokens
    for same in ([3, 4, 5], torch.tensor([3, 4, 5]), torch.tensor([[3, 4, 5]]), [torch.tensor([3, 4, 5])]):
        assert generate(model, same, max_new_tokens=4, stop=()).tokens == expected


def test_the_models_own_stop_token():
    model = tiny("swila")
    free = generate(model, prompts()[0], max_new_tokens=12, stop=()).tokens[0]
    model.generation_config.eos_token_id = free[5]
    assert generate(model, prompts()[0], max_new_tokens=12).tokens[0] == free[: free.index(free[5]) + 1]


def test_the_model_is_left_as_it_was():
    model = tiny("swila").train()
    generate(model, prompts(), max_new_tokens=3)
    assert model.training
    pickle.loads(pickle.dumps(model))
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None


def test_buffers_are_used_again_and_follow_the_weights():
    model = tiny("hybrid-temporal-swila")
    generate(model, prompts(), max_new_tokens=5, stop=())
    first = _decoders[model]
    generate(model, prompts()[::-1], max_new_tokens=20, stop=())
    assert _decoders[model] is first
    generate(model, prompts(), max_new_tokens=400, stop=())  # more room is needed
    second = _decoders[model]
    assert second is not first
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.flip(0))
    out = generate(model, prompts(), max_new_tokens=5, stop=())
    assert _decoders[model] is not second
    assert out.tokens == [by_transformers(model, prompt, 5) for prompt in prompts()]


@pytest.mark.unpoisoned
def test_compiled_blocks_give_the_same_tokens():
    model = tiny("hybrid-temporal-swila")
    expected = generate(model, prompts(), max_new_tokens=8, stop=()).tokens
    assert generate(model, prompts(), max_new_tokens=8, stop=(), compile=True).tokens == expected


def test_room_is_at_most_an_eighth_too_large():
    for n in (1, 255, 256, 257, 2049, 5000, 100_000):
        assert n <= rounded_up(n) <= max(n + n / 8, 256 + n)
        assert rounded_up(rounded_up(n)) == rounded_up(n)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "prompts or state must be given"),
        ({"prompts": "text"}, "tokenizer must be given for prompts that are text"),
        ({"prompts": []}, "prompts must hold at least one"),
        ({"prompts": [[1], []]}, "prompts must have at least one token each"),
        ({"prompts": [[VOCABULARY]]}, f"prompts must hold ids below vocab_size = {VOCABULARY}, got {VOCABULARY}"),
        ({"prompts": torch.zeros(1, 3)}, r"prompts must be token ids \[T\] or \[B, T\], got torch.float32"),
        ({"prompts": [[1]], "max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"prompts": [[1]], "temperature": -1.0}, "temperature must be 0"),
        ({"prompts": [[1]], "top_p": 0.0}, "top_p must be above 0"),
        ({"prompts": [[1]], "top_k": 0}, "top_k must be at least 1"),
    ],
)
def test_mistakes(given, message):
    with pytest.raises(ValueError, match=message):
        generate(tiny("swila"), **given)


def test_a_state_of_another_batch():
    model = tiny("swila")
    with pytest.raises(ValueError, match="state must have one row, or one for each of 3 prompts, got 2"):
        prefill(model, [[1], [2], [3]], state=prefill(model, [[1], [2]]))
    assert isinstance(prefill(model, [1])[0], GenerationState)
