"""A state that was written to a file goes on bit for bit, in another process too."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from language_models import NAMES, tiny, tokens
from swila import GenerationState, generate, prefill
from swila.generation.fingerprint import weights_fingerprint


@pytest.fixture(params=NAMES)
def model(request):
    return tiny(request.param)


def assert_same(a, b):
    assert a.tokens == b.tokens
    assert torch.equal(a.hidden, b.hidden)
    for i in range(len(a.cache)):
        for part, tree in a.cache[i].items():
            for x, y in zip(tree or (), b.cache[i][part] or (), strict=True):
                assert (x is None and y is None) or torch.equal(x, y)


def test_round_trip(model, tmp_path):
    rows = [tokens(n, seed=n).tolist() for n in (7, 12)]
    for state in (prefill(model, rows), generate(model, rows, max_new_tokens=9, stop=(), return_state=True).state):
        state.save(tmp_path / "deep" / "state.safetensors", model)
        loaded = GenerationState.load(tmp_path / "deep" / "state.safetensors", model)
        assert_same(loaded, state)
        drawn = {"max_new_tokens": 8, "temperature": 1.0, "seed": 1, "return_state": True, "stop": ()}
        a, b = generate(model, state=state, **drawn), generate(model, state=loaded, **drawn)
        assert a.tokens == b.tokens
        assert_same(a.state, b.state)
        more = [[5, 6], [7]]
        assert_same(prefill(model, more, state=state), prefill(model, more, state=loaded))
    assert (tmp_path / "deep" / "state.safetensors").stat().st_size < 1.1 * state.num_bytes() + 8000
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["state.safetensors"]


CONTINUE = """
import json, sys, torch
torch.set_default_device(sys.argv[3])
from swila import GenerationState, SwiLAForCausalLM, generate
torch.set_num_threads(1)
model = SwiLAForCausalLM.from_pretrained(sys.argv[1]).to(sys.argv[3])
state = GenerationState.load(sys.argv[2], model)
print(json.dumps(generate(model, state=state, max_new_tokens=12, temperature=1.0, seed=9, stop=()).tokens))
"""


def test_in_another_process(tmp_path, device):
    model = tiny("gated-temporal-swila")
    model.save_pretrained(tmp_path / "model")
    state = prefill(model, tokens(30).tolist())
    state.save(tmp_path / "state", model)
    here = generate(model, state=state, max_new_tokens=12, temperature=1.0, seed=9, stop=()).tokens
    arguments = [sys.executable, "-c", CONTINUE, str(tmp_path / "model"), str(tmp_path / "state"), device]
    assert json.loads(subprocess.check_output(arguments, text=True)) == here


def test_size_does_not_grow_with_the_text():
    sizes = {prefill(tiny("temporal-swila"), tokens(n).tolist()).num_bytes() for n in (3, 50)}
    assert len(sizes) == 1


def test_states_of_others_are_refused(tmp_path):
    model, path = tiny("temporal-swila"), tmp_path / "state"
    prefill(model, [1, 2, 3]).save(path, model)
    with pytest.raises(
        ValueError, match="state of another architecture: its layers are 4 x swila, the model's are 3 x sw"
    ):
        GenerationState.load(path, tiny("hybrid-temporal-swila"))
    other = tiny("temporal-swila", seed=1)
    with pytest.raises(ValueError, match="was made with other weights than the model's"):
        GenerationState.load(path, other)
    with pytest.raises(
        ValueError, match="was made in float32, and the model is in bfloat16: load the model in float32"
    ):
        GenerationState.load(path, tiny("temporal-swila").bfloat16())
    assert GenerationState.load(path, other, check=False).tokens == [3]
    half = tiny("temporal-swila").bfloat16()
    generate(half, state=GenerationState.load(path, half, check=False), max_new_tokens=2)
    with pytest.raises(ValueError, match="path must be a file, got the directory"):
        prefill(model, [1]).save(tmp_path, model)
    (tmp_path / "text").write_text("not a state")
    with pytest.raises(ValueError, match=r"path must be a file with a saved state, got .*text"):
        GenerationState.load(tmp_path / "text", model)
    with pytest.raises(ValueError, match="path must be a file with a saved state"):
        GenerationState.load(tmp_path / "nothing", model)
    save_file(load_file(path), path)  # without what it says about itself
    with pytest.raises(ValueError, match="not a saved state of this version"):
        GenerationState.load(path, model)


def test_a_state_in_memory_knows_its_model(tmp_path):
    """Another model of the same shape is refused, wherever the state comes from; the same weights elsewhere are not."""
    model, other = tiny("temporal-swila"), tiny("temporal-swila", seed=1)
    state = prefill(model, [1, 2, 3])
    after = generate(model, state=state, max_new_tokens=2, stop=(), return_state=True).state
    for given in (state, after, state[[0, 0]], prefill(model, [4], state=state)):
        for use in (
            lambda s: generate(other, state=s, max_new_tokens=2),
            lambda s: generate(other, [[5]] * len(s), state=s, max_new_tokens=2),
            lambda s: prefill(other, [[5]] * len(s), state=s),
            lambda s: s.save(tmp_path / "state", other),
        ):
            with pytest.raises(ValueError, match="state was made with other weights than the model's"):
                use(given)
    assert not (tmp_path / "state").exists()
    expected = generate(model, state=state, max_new_tokens=4, stop=()).tokens
    twin = copy.deepcopy(model)
    del model
    assert generate(twin, state=state, max_new_tokens=4, stop=()).tokens == expected
    assert prefill(twin, [5], state=state).tokens == [4]


def test_weights_that_are_written_to_are_others():
    model = tiny("deltanet")
    state = prefill(model, [1, 2, 3])
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    with pytest.raises(ValueError, match="other weights"):
        generate(model, state=state, max_new_tokens=1)
    state = prefill(model, [1, 2, 3])
    with torch.no_grad():
        model.lm_head.weight.view(-1)[8:-8] += 1  # not its ends
    with pytest.raises(ValueError, match="other weights"):
        generate(model, state=state, max_new_tokens=1)


@torch.no_grad()
@pytest.mark.parametrize("change", ["0,1", "17,90", "-1,-2", "values of a row", "rows"])
def test_any_change_makes_other_weights(change):
    """Of one value, wherever it is, or of the order of values."""
    model = tiny("deltanet")
    state, other = prefill(model, [1, 2, 3]), copy.deepcopy(model)
    weight = other.model.layers[1].mixer.q_proj.weight
    if change == "values of a row":
        weight[5] = weight[5].roll(1)
    elif change == "rows":
        weight[[3, 8]] = weight[[8, 3]]
    else:
        row, column = map(int, change.split(","))
        weight[row, column] += 30
    with pytest.raises(ValueError, match="other weights"):
        generate(other, state=state, max_new_tokens=1)


def test_the_fingerprint_follows_its_model_through_changes_and_back():
    model = tiny("swila")
    first, weight = weights_fingerprint(model), model.lm_head.weight
    with torch.no_grad():
        weight[5, 7] *= 2
        assert weights_fingerprint(model) != first
        weight[5, 7] /= 2
    assert weights_fingerprint(model) == first
    assert weights_fingerprint(copy.deepcopy(model)) == first
    if model.device.type == "cpu":
        weight.data.mul_(2)  # no version tells of this
        assert weights_fingerprint(model) != first


def test_options_that_change_what_a_state_means_are_others():
    model = tiny("gated-swila")
    state = prefill(model, [1, 2, 3])
    for changes, same in (({"decay_order": "post"}, False), ({"balance_marginal": 0.5, "backend": "blocked"}, True)):
        other = tiny("gated-swila", mixer_options=model.config.options_of("swila") | changes)
        other.load_state_dict(model.state_dict())
        if same:
            generate(other, state=state, max_new_tokens=1)
            continue
        with pytest.raises(ValueError, match="other options"):
            generate(other, state=state, max_new_tokens=1)
    other = tiny("gated-swila", norm_eps=1e-3)
    other.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="other options"):
        generate(other, state=state, max_new_tokens=1)


def test_the_cache_of_a_state_belongs_to_its_model(tmp_path):
    """Whether it was read, generated or loaded: a model of the same shape does not take it up by hand."""
    model, other, ids = tiny("temporal-swila"), tiny("temporal-swila", seed=1), tokens(1, 1)
    states = [prefill(model, [1, 2, 3]), generate(model, [1, 2], max_new_tokens=2, stop=(), return_state=True).state]
    states[0].save(tmp_path / "state", model)
    for state in (*states, GenerationState.load(tmp_path / "state", model)):
        with pytest.raises(ValueError, match="layer_idx must be different for each layer that shares a cache"):
            other(ids, past_key_values=state.cache)
        model(ids, past_key_values=state.cache)


def test_forced_into_another_precision(tmp_path):
    model, path = tiny("temporal-swila"), tmp_path / "state"
    prefill(model, [1, 2, 3]).save(path, model)
    double = copy.deepcopy(model).double()
    there = GenerationState.load(path, double, check=False)
    there.save(path, double)
    back = GenerationState.load(path, model, check=False)
    device_takes_it = there.hidden.device.type == "cpu"  # kernels have no float64
    assert there.cache[0]["recurrent_state"].W.dtype == there.hidden.dtype == torch.float64
    assert back.cache[0]["recurrent_state"].W.dtype == back.hidden.dtype == torch.float32
    assert_close(back.hidden, prefill(model, [1, 2, 3]).hidden)
    for who, state in ((model, back), *([(double, there)] if device_takes_it else [])):
        generate(who, state=state, max_new_tokens=2)


def test_forced_states_count_as_the_models_own(tmp_path):
    model, other, path = tiny("temporal-swila"), tiny("temporal-swila", seed=1), tmp_path / "state"
    prefill(model, [1, 2, 3]).save(path, model)
    forced = GenerationState.load(path, other, check=False)
    generate(other, state=forced, max_new_tokens=2)
    forced.save(path, other)
    GenerationState.load(path, other)
    with pytest.raises(ValueError, match="other weights"):
        GenerationState.load(path, model)


def test_flipped_bits_are_refused(tmp_path):
    """A single bit anywhere: in a tensor, or in what the file says about itself."""
    model, path = tiny("hybrid-temporal-swila"), tmp_path / "state"
    state = prefill(model, [[1, 2, 3], [4]])
    state.save(path, model)
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    generator = torch.Generator().manual_seed(0)
    inside = torch.randint(8 + header, len(whole), (12,), generator=generator, device="cpu").tolist()
    said = [whole.index(mark) + len(mark) for mark in (b'"tokens":"[', b'"dtype":"float', b'"weights":"')]
    for place in [*inside, 8 + header, len(whole) - 1, *said]:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged: its contents do not match their checksum"):
            GenerationState.load(path, model)
    path.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match="path must be a file with a saved state"):
        GenerationState.load(path, model)
    path.write_bytes(whole)
    assert_same(GenerationState.load(path, model), state)


def test_a_layer_under_another_name_is_refused(tmp_path):
    model, path = tiny("temporal-swila"), tmp_path / "state"
    prefill(model, [1, 2, 3]).save(path, model)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"layers.3.', b'"layers.7.'))
    assert path.read_bytes() != whole
    with pytest.raises(ValueError, match="is damaged"):
        GenerationState.load(path, model)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    def full(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise OSError("no space left on device")

    model, path = tiny("temporal-swila"), tmp_path / "state"
    state = prefill(model, [1, 2, 3])
    state.save(path, model)
    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="no space left"):
        prefill(model, [4, 5]).save(path, model)
    assert_same(GenerationState.load(path, model), state)


def test_a_file_of_another_version_is_refused(tmp_path):
    model, path = tiny("temporal-swila"), tmp_path / "state"
    prefill(model, [1, 2, 3]).save(path, model)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, metadata | {"format": "swila-state-0"})
    with pytest.raises(ValueError, match=r"not a saved state of this version: format must be .*, got 'swila-state-0'"):
        GenerationState.load(path, model)


def test_rows_can_be_taken_and_repeated():
    model = tiny("hybrid-gdn")
    state = prefill(model, [[1, 2, 3], [4, 5]])
    for chosen, rows in ((state[1], [1]), (state[-1:], [1]), (state[[1, 0, 1]], [1, 0, 1])):
        assert chosen.tokens == [state.tokens[i] for i in rows]
        together = generate(model, state=chosen, max_new_tokens=6, stop=()).tokens
        assert together == [generate(model, state=state[i], max_new_tokens=6, stop=()).tokens[0] for i in rows]
    for mask in ([False, True], torch.tensor([False, True]), numpy.array([False, True])):
        assert state[mask].tokens == [2], mask
    assert state[torch.tensor([1, 0])].tokens == state[(1, 0)].tokens == [2, 3]
    assert state[torch.tensor(1)].tokens == state[numpy.int64(1)].tokens == [2]
    with pytest.raises(IndexError):
        state[2]
    for nothing in ([], slice(2, None), [False, False]):
        with pytest.raises(ValueError, match="rows must name at least one of the 2 rows"):
            state[nothing]
    with pytest.raises(ValueError, match="a mask of rows must have 2 entries, got 3"):
        state[[True, False, True]]
