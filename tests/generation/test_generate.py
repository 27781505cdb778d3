"""``swila.generate``: the tokens of transformers' generate, from any batch, stopped and continued anywhere."""

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch
from torch.testing import assert_close

from language_models import NAMES, VOCABULARY, tiny, tokens, tolerance
from swila import GenerationState, SwiLAConfig, SwiLAForCausalLM, generate, prefill
from swila.generation import Sampling, release
from swila.generation.api import _decoder, _decoders
from swila.generation.decoder import rounded_up
from swila.generation.state import _flatten
from swila.layers import MIXERS, SequenceMixer

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
    assert generate(model, prompts(), seed=2**64 - 1, **drawn).tokens != first
    torch.manual_seed(5)
    unseeded = generate(model, prompts(), **drawn).tokens
    assert generate(model, prompts(), **drawn).tokens != unseeded
    torch.manual_seed(5)
    assert generate(model, prompts(), **drawn).tokens == unseeded


def test_draws_have_the_probabilities_they_should(device):
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])
    generator = torch.Generator(device).manual_seed(0)

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
    seen = []
    generate(model, prompts(), max_new_tokens=4, stop=(), streamer=seen.append)
    assert torch.stack(seen).T.tolist() == out.tokens  # tensors that may be kept


def test_a_streamer_gets_a_row_for_each_of_a_state():
    model, listener = tiny("swila"), Listener()
    out = generate(model, state=prefill(model, prompts()), max_new_tokens=2, stop=(), streamer=listener)
    assert listener.got[0] == [[]] * 4
    assert torch.tensor(listener.got[1:]).T.tolist() == out.tokens


def test_a_streamer_is_told_that_a_call_has_failed():
    model, listener = tiny("swila"), Listener()
    state = prefill(model, [1, 2])
    state.hidden[0, 0] = float("nan")
    with pytest.raises(ValueError, match="logits must be finite"):
        generate(model, state=state, streamer=listener)
    assert listener.ended


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
    torch.set_default_device(None)  # tracing does not know it
    expected = generate(model, prompts(), max_new_tokens=8, stop=()).tokens
    assert generate(model, prompts(), max_new_tokens=8, stop=(), compile=True).tokens == expected


def test_calls_at_the_same_time_do_not_meet():
    model = tiny("gated-temporal-swila")
    expected = [generate(model, [i, 2, 3], max_new_tokens=60, stop=()).tokens for i in range(1, 5)]
    with ThreadPoolExecutor(4) as pool:
        together = pool.map(lambda i: generate(model, [i, 2, 3], max_new_tokens=60, stop=()).tokens, range(1, 5))
        assert list(together) == expected


class Average(SequenceMixer):
    """A layer that writes no more than it must: ``mix`` and ``state_size``."""

    def __init__(self, hidden_size, layer_idx=None):
        super().__init__(hidden_size, layer_idx)
        self.proj = torch.nn.Linear(hidden_size, hidden_size)

    def mix(self, x, past, mode):
        assert mode.cu_seqlens is None
        state = x.new_zeros(x.shape[0], x.shape[2]) if past is None else past["recurrent_state"][0]
        outputs = []
        for t in range(x.shape[1]):
            state = 0.7 * state + x[:, t]
            outputs.append(state)
        return self.proj(torch.stack(outputs, 1)), {"recurrent_state": (state,)} if mode.return_state else None

    def state_size(self, length=1):
        return self.hidden_size


def test_a_mixer_that_only_knows_how_to_mix(monkeypatch, tmp_path):
    monkeypatch.setitem(MIXERS, "average", Average)
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.1}
    model = SwiLAForCausalLM(SwiLAConfig(mixer="average", **sizes)).eval()
    free = by_transformers(model, [3, 4, 5], 12)
    assert generate(model, [3, 4, 5], max_new_tokens=12, stop=()).tokens == [free]
    out = generate(model, [3, 4, 5], max_new_tokens=12, stop=free[6], return_state=True)
    assert_close(out.state.hidden, prefill(model, [3, 4, 5, *out.tokens[0]]).hidden, **tolerance())
    out.state.save(tmp_path / "state", model)
    loaded = GenerationState.load(tmp_path / "state", model)
    assert (
        generate(model, state=loaded, max_new_tokens=4).tokens
        == generate(model, state=out.state, max_new_tokens=4).tokens
    )


@pytest.mark.parametrize("name", ["hybrid-gdn", "temporal-swila"])
def test_calls_under_other_modes_leave_nothing_behind(name, device):
    model = tiny(name)
    expected = generate(model, prompts(), max_new_tokens=10, stop=(), return_state=True)
    for mode in (torch.inference_mode(), torch.autocast(device, torch.bfloat16)):
        with mode:
            generate(model, prompts(), max_new_tokens=10, stop=())
        again = generate(model, prompts(), max_new_tokens=10, stop=(), return_state=True)
        assert again.tokens == expected.tokens
        assert torch.equal(again.state.hidden, expected.state.hidden)


def test_training_mode_is_left_for_reading_and_comes_back():
    model = tiny("temporal-swila", mixer_options={"router_noise": True}).train()
    model.gradient_checkpointing_enable()
    model.model.layers[1].eval()
    assert torch.equal(*(prefill(model, [1, 2, 3]).hidden for _ in range(2)))
    generate(model, [1, 2, 3], max_new_tokens=2)
    assert model.training
    assert model.model.layers[0].mixer.training
    assert not model.model.layers[1].mixer.training


def test_what_a_tokenizer_returns():
    model = tiny("swila")
    expected = generate(model, [[3, 4, 5], [6]], max_new_tokens=4, stop=()).tokens
    ids, mask = torch.tensor([[3, 4, 5], [0, 0, 6]]), torch.tensor([[1, 1, 1], [0, 0, 1]])
    assert generate(model, {"input_ids": ids, "attention_mask": mask}, max_new_tokens=4, stop=()).tokens == expected
    assert generate(model, {"input_ids": [[3, 4, 5], [6]]}, max_new_tokens=4, stop=()).tokens == expected
    arrays = [numpy.array([3, 4, 5]), numpy.array([6])]
    assert generate(model, arrays, max_new_tokens=4, stop=()).tokens == expected
    assert generate(model, [6], max_new_tokens=4, stop=numpy.int64(expected[1][1])).stopped == [True]


def test_nothing_new_is_the_prompt_alone():
    model = tiny("hybrid-gdn")
    out = generate(model, prompts(), max_new_tokens=0, return_state=True)
    assert out.tokens == [[]] * 4
    assert out.stopped == [False] * 4
    assert torch.equal(out.state.hidden, prefill(model, prompts()).hidden)
    assert generate(model, prompts(), max_new_tokens=0).state is None


def test_states_of_other_models_are_refused():
    state = prefill(tiny("temporal-swila"), [1, 2])
    assert repr(state).startswith("GenerationState(1 rows, tokens=[2], 0.")
    with pytest.raises(ValueError, match="state is the state of another architecture: its layers are 4 x swila"):
        generate(tiny("hybrid-temporal-swila"), [3], state=state)
    with pytest.raises(ValueError, match="state is the state of another architecture"):
        generate(tiny("gdn"), state=state)
    narrow = tiny("temporal-swila", hidden_size=64, mixer_options={"head_dim": 16})
    with pytest.raises(ValueError, match="state is the state of a model of width 128, and the model's width is 64"):
        prefill(narrow, [3], state=state)


def test_release():
    model = tiny("swila")
    generate(model, [1], max_new_tokens=1)
    assert model in _decoders
    release(model)
    assert model not in _decoders


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
        ({"prompts": torch.zeros(1, 3)}, r"prompts must be text, token ids \[T\] or \[B, T\], .* got \[0.0"),
        ({"prompts": 3}, "prompts must be text, token ids, or a list of them, got int"),
        ({"prompts": [[[1]]]}, r"prompts must be text, token ids \[T\] or \[B, T\]"),
        ({"prompts": [[1]], "max_new_tokens": -1}, "max_new_tokens must be 0 or more, got -1"),
        ({"prompts": [[1]], "max_new_tokens": 2.5}, "max_new_tokens must be an integer of at least 0, got 2.5"),
        ({"prompts": [[1]], "max_new_tokens": "3"}, "max_new_tokens must be an integer of at least 0, got '3'"),
        ({"prompts": [[1]], "max_new_tokens": True}, "max_new_tokens must be an integer of at least 0, got True"),
        ({"prompts": [[1]], "seed": 0.5}, r"seed must be an integer from 0 to 2\*\*64 - 1, got 0.5"),
        ({"prompts": [[1]], "seed": 3.0}, r"seed must be an integer from 0 to 2\*\*64 - 1, got 3.0"),
        ({"prompts": [[1]], "seed": True}, r"seed must be an integer from 0 to 2\*\*64 - 1, got True"),
        ({"prompts": [[1]], "seed": -1}, r"seed must be an integer from 0 to 2\*\*64 - 1, got -1"),
        ({"prompts": [[1]], "seed": 2**64}, r"seed must be an integer from 0 to 2\*\*64 - 1, got 18446744073709551616"),
        ({"prompts": [[1]], "top_k": 2.5}, "top_k must be at least 1, or None for all tokens, got 2.5"),
        ({"prompts": [[1]], "temperature": "hot"}, r"temperature must be 0 .* got 'hot'"),
        ({"prompts": [[1]], "temperature": float("inf")}, r"temperature must be 0 .* got inf"),
        ({"prompts": [[1]], "top_p": None}, "top_p must be above 0 and at most 1, got None"),
        ({"prompts": [[1]], "stop": 2.5}, "stop must be a token id, or a list of them, got 2.5"),
        ({"prompts": [[1]], "stop": {2}}, r"stop must be a token id, or a list of them, got \{2\}"),
        ({"prompts": [[1]], "state": "book.safetensors"}, "state must be a GenerationState, got str"),
        ({"prompts": [[1]], "stop": "end"}, "stop must be token ids, got 'end'; for text, use model.generate"),
        ({"prompts": [[1]], "streamer": 3}, "streamer must have put and end, as transformers' have, or be a function"),
        ({"prompts": [[1]], "temperature": -1.0}, "temperature must be 0"),
        ({"prompts": [[1]], "top_p": 0.0}, "top_p must be above 0"),
        ({"prompts": [[1]], "top_k": 0}, "top_k must be at least 1"),
    ],
)
def test_mistakes(given, message):
    with pytest.raises(ValueError, match=message):
        generate(tiny("swila"), **given)


def test_models_that_cannot_be_stepped_through():
    model = tiny("swila")
    with pytest.raises(ValueError, match="model must be a SwiLAForCausalLM, got SwiLAModel"):
        generate(model.model, [1])
    with pytest.raises(ValueError, match=r"got OptimizedModule; pass the model itself, and compile=True"):
        generate(torch.compile(model), [1])
    adapted = type("PeftModel", (torch.nn.Module,), {"get_base_model": lambda self: model})()
    for work in (generate, prefill):
        with pytest.raises(
            ValueError, match=r"got PeftModel; pass model.get_base_model\(\), .* model.merge_and_unload"
        ):
            work(adapted, [1])
    model.model.layers[1].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="model must have no forward hooks on blocks or mixers"):
        generate(model, [1])
    for work in (prefill, generate):
        with pytest.raises(ValueError, match="state must be a GenerationState, got dict"):
            work(model, [1], state={})
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        prefill(model, [1], chunk_size=0)
    with pytest.raises(ValueError, match=r"chunk_size must be an integer of at least 1, got 1.5"):
        prefill(model, [1], chunk_size=1.5)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 0}, {"temperature": 0.7, "top_k": 5, "seed": 1}])
@pytest.mark.parametrize("watched", [False, True])
def test_logits_that_are_not_finite_raise_and_name_the_step(sampling, watched):
    model, seen = tiny("temporal-swila"), []
    options = {"stop": (), "streamer": seen.append if watched else None, **sampling}
    state = prefill(model, [[1, 2], [3, 4]])
    for value in (float("nan"), float("inf")):
        broken = copy.deepcopy(state)
        broken.hidden[1, 0] = value
        with pytest.raises(ValueError, match="logits must be finite, got NaN or infinity for row 1 at step 1: the"):
            generate(model, state=broken, max_new_tokens=40, **options)
    assert seen == []
    free = generate(model, state=state, max_new_tokens=40, stop=(), **sampling).tokens
    first = next(n for n, token in enumerate(free[0]) if token not in free[1] + free[0][:n] + [1, 2, 3, 4])
    with torch.no_grad():
        model.model.embed_tokens.weight[free[0][first]] = float("nan")
    state = prefill(model, [[1, 2], [3, 4]])
    with pytest.raises(ValueError, match=f"for row 0 at step {first + 2}: "):
        generate(model, state=state, max_new_tokens=40, **options)
    assert len(seen) == (first + 1 if watched else 0)


def test_a_row_that_is_done_may_have_any_logits():
    model, rows = tiny("deltanet"), [[1, 2], [3, 4]]
    free = generate(model, rows, max_new_tokens=9, stop=()).tokens
    stop = next(token for token in free[0] if token not in free[1] + [1, 2, 3, 4])
    with torch.no_grad():
        model.model.embed_tokens.weight[stop] = float("nan")
    out = generate(model, rows, max_new_tokens=9, stop=stop)
    assert out.tokens == [free[0][: free[0].index(stop) + 1], free[1]]


@torch.no_grad()
@pytest.mark.parametrize("name", ["temporal-swila", "gdn-mom", "hybrid-gdn"])
def test_rows_that_are_done_read_nothing(name):
    """Their states stay as they are, whatever the embedding of the token in their place, which is 0."""
    model, rows = tiny(name), [[1, 2], [3, 4]]
    model.lm_head.weight[0] = 0  # never the likeliest
    free = generate(model, rows, max_new_tokens=9, stop=()).tokens
    stop = next(token for token in free[0] if token not in free[1])
    expected = generate(model, rows, max_new_tokens=9, stop=stop, return_state=True)
    model.model.embed_tokens.weight[0] = float("nan")
    found = generate(model, rows, max_new_tokens=9, stop=stop, return_state=True)
    assert found.tokens == expected.tokens
    assert_close(_flatten(found.state), _flatten(expected.state), rtol=0, atol=0)


@torch.no_grad()
def test_the_first_step_without_finite_logits_is_noted():
    """Also where the host looks only after several steps."""
    model = tiny("temporal-swila")
    state = prefill(model, [[1, 2], [3, 4]])
    decoder = _decoder(model, state, 5, Sampling(), (), False)
    decoder.load(state, seed=0)
    for step in range(4):
        if step >= 1:
            decoder.hidden[1] = float("nan")
        decoder._decode(0)
    assert decoder.broken.tolist() == [0, 2]


def test_a_state_of_another_batch():
    model = tiny("swila")
    with pytest.raises(ValueError, match="state must have one row, or one for each of 3 prompts, got 2"):
        prefill(model, [[1], [2], [3]], state=prefill(model, [[1], [2]]))
    assert isinstance(prefill(model, [1])[0], GenerationState)
