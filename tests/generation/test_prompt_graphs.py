"""Short prompts are read in packed passes of few forms, which a GPU replays."""

import gc
import warnings
import weakref
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from language_models import NAMES, tiny, tokens, tolerance
from swila import generate, prefill
from swila.generation import prompt_graphs, release
from swila.generation.capturing import capturing, cause_of
from swila.generation.decoder import addresses, rounded_up
from swila.generation.prompt_graphs import MOST_ROWS, MOST_TOKENS, ROUNDING, PassForm, PromptPass, is_capturable
from swila.layers import Cache, capture
from swila.layers.cache import tensors
from swila.layers.capture import problem
from swila.ops import backends, set_value_checks
from swila.ops.fused.choice import use_fused

RECURRENT = ("swila", "temporal-swila", "gated-swila", "gated-temporal-swila", "deltanet", "gdn", "kda")


@pytest.fixture
def forms(monkeypatch):
    """Any model is read in packed passes, on any device."""
    monkeypatch.setattr(prompt_graphs, "_served", lambda model: True)
    monkeypatch.setattr(prompt_graphs, "is_capturable", lambda model: True)
    return lambda model: list(prompt_graphs._graphs[model].passes)


@pytest.fixture
def replayed(forms, monkeypatch):
    """In place of a graph: a capture notes its pass, and a replay computes it."""
    captured = []

    class Replay:
        def __init__(self, one):
            self.one, self.written = weakref.ref(one), None

        def replay(self):
            one = self.one()
            one._compute()
            if self.written is None:
                self.written = one.hidden, tuple(one.after)
            for to, result in zip(tensors(self.written), tensors((one.hidden, tuple(one.after))), strict=True):
                to.copy_(result)
            one.hidden, one.after = self.written[0], list(self.written[1])

    def note(one, *where):
        captured.append(one.form)
        one.graph = Replay(one)

    monkeypatch.setattr(PromptPass, "capture", note)
    made = prompt_graphs.PromptGraphs.__init__

    def make(self, model):
        made(self, model)
        self.captures = True

    monkeypatch.setattr(prompt_graphs.PromptGraphs, "__init__", make)
    return captured


def as_before(model, *arguments, **options):
    """The state after prompts, read as on a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swila.generation.prompts.prompt_graphs", lambda model: None)
        return prefill(model, *arguments, **options)


def assert_same(found, expected):
    assert found.tokens == expected.tokens
    assert found.cache.get_seq_length() == expected.cache.get_seq_length()
    assert found.cache._owners == expected.cache._owners
    torch.testing.assert_close(found.hidden, expected.hidden, **tolerance(4))
    for i in range(len(expected.cache)):
        torch.testing.assert_close(found.cache[i], expected.cache[i], **tolerance(4))


@pytest.mark.parametrize("name", RECURRENT)
def test_states_are_those_of_a_pass_over_each_row(name, forms):
    model = tiny(name, num_hidden_layers=2)
    for lengths in ([20], [64], [1], [7, 64, 3], [60, 4], [33] * 8):
        rows = [tokens(n, seed=n + 7 * i).tolist() for i, n in enumerate(lengths)]
        found = prefill(model, rows)
        assert forms(model)[-1][:3] == (len(rows), rounded_up(sum(lengths), *ROUNDING), sum(lengths) % 64 != 0)
        assert_same(found, as_before(model, rows))
        out = generate(model, state=found, max_new_tokens=3, stop=(), return_state=True)
        expected = generate(model, state=as_before(model, rows), max_new_tokens=3, stop=(), return_state=True)
        assert out.tokens == expected.tokens


@pytest.mark.parametrize("name", ["temporal-swila", "gdn"])
def test_passes_that_continue(name, replayed, forms):
    """States of earlier texts, in chunks, at the first use of a form and at later ones."""
    model = tiny(name, num_hidden_layers=2)
    rows = [tokens(n, seed=n).tolist() for n in (50, 41, 42)]
    for turn in range(3):
        state = as_before(model, [[turn + 1, 2], [3], [4, turn + 5, 6]])
        kept = [t.clone() for i in range(2) for t in tensors(state.cache[i])]
        found = prefill(model, rows, state=state, chunk_size=20)
        assert_same(found, as_before(model, rows, state=state, chunk_size=20))
        assert all(map(torch.equal, kept, [t for i in range(2) for t in tensors(state.cache[i])]))
        assert replayed == [PassForm(3, 64, True, forms(model)[0].dtypes)]  # at the second chunk of the first turn
    assert forms(model)[0].dtypes is not None
    one = prefill(model, [5, 6])
    assert_same(prefill(model, rows, state=one), as_before(model, rows, state=one))


def test_results_are_copies(replayed):
    model = tiny("swila", num_hidden_layers=1)
    states, expected = [], []
    for seed in range(4):
        rows = [tokens(10 + seed, seed=seed).tolist(), [seed + 1]]
        states.append(prefill(model, rows))
        expected.append(as_before(model, rows))
    assert len(replayed) == 1
    for found, wanted in zip(states, expected, strict=True):
        assert_same(found, wanted)
    with torch.no_grad():
        one, two = (prompt_graphs._graphs[model].read([tokens(11), tokens(n)], Cache()) for n in (1, 2))
    assert not torch.equal(one[1], two[1])


def test_a_form_is_captured_at_its_second_use(replayed):
    model = tiny("swila", num_hidden_layers=1)
    for n, captures in ((64, 0), (20, 0), (64, 1), (40, 2), (64, 2), (65, 2), (70, 3), (90, 3)):
        prefill(model, [1] * n)
        assert len(replayed) == captures
    assert replayed == [PassForm(1, 64, False, None), PassForm(1, 64, True, None), PassForm(1, 128, True, None)]


def test_forms_that_were_not_used_for_longest_are_forgotten(forms, monkeypatch):
    monkeypatch.setattr(prompt_graphs, "MOST_FORMS", 2)
    model = tiny("swila", num_hidden_layers=1)
    for n in (64, 128, 64, 192):
        prefill(model, [1] * n)
    assert [form.capacity for form in forms(model)] == [64, 192]


def test_graphs_that_were_not_used_for_longest_are_freed(replayed, forms, monkeypatch):
    """If their states need more memory than allowed; forms without a graph need none."""
    model = tiny("swila", num_hidden_layers=2)
    for n in (320, 64, 64):
        prefill(model, [1] * n)
    _, one = prompt_graphs._graphs[model].passes.values()
    read = as_before(model, [1] * 64)
    assert one.bytes == sum(t.nbytes for i in range(2) for t in tensors(read.cache[i]))
    monkeypatch.setattr(prompt_graphs, "MOST_BYTES", 2 * one.bytes)
    for n in (128, 128, 64, 192):
        prefill(model, [1] * n)
    assert [form.capacity for form in forms(model)] == [320, 128, 64, 192]
    assert_same(prefill(model, [1] * 192), as_before(model, [1] * 192))
    assert [form.capacity for form in forms(model)] == [320, 64, 192]
    captures = len(replayed)
    prefill(model, [1] * 128)
    assert len(replayed) == captures
    prefill(model, [1] * 128)
    assert len(replayed) == captures + 1
    monkeypatch.setattr(prompt_graphs, "MOST_BYTES", 0)
    for _ in range(2):
        assert_same(prefill(model, [1] * 256), as_before(model, [1] * 256))
    assert [form.capacity for form, one in prompt_graphs._graphs[model].passes.items() if one.graph] == [256]


def test_buffers_are_freed_unless_they_are_those_of_a_graph(forms):
    model = tiny("swila", num_hidden_layers=1)
    prefill(model, [1] * 20, state=prefill(model, [1] * 20))
    for one in prompt_graphs._graphs[model].passes.values():
        assert one.uses == 1
        assert one.ids is one.bounds is one.hidden is None
        assert one.before == one.after == []
        assert one.bytes == 0


def test_the_first_error_of_a_failed_capture_is_told():
    def fail():
        try:
            raise RuntimeError("a read on the host")
        except RuntimeError:
            raise RuntimeError("operation failed due to a previous error during capture") from None

    with pytest.raises(RuntimeError, match="previous error") as caught:
        fail()
    assert str(cause_of(caught.value)) == "a read on the host"


def test_garbage_is_not_collected_in_a_capture(monkeypatch):
    captured = []
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **options: captured.append(graph) or nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "another")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: None)

    def fail():
        with capturing("the graph", None):
            assert not gc.isenabled()
            raise RuntimeError("failed")

    for before in (True, False):
        gc.enable() if before else gc.disable()
        try:
            with pytest.raises(RuntimeError, match="failed"):
                fail()
            assert gc.isenabled() == before
        finally:
            gc.enable()
    assert captured == 2 * ["the graph", "another"]  # after a capture that fails, one that does not
    with capturing("the graph", None):
        pass
    assert captured[4:] == ["the graph"]


def test_weights_of_another_dtype_are_others():
    """Also where they have the same addresses."""
    model = tiny("swila", num_hidden_layers=1)
    weight = model.model.norm.weight
    before = addresses(model)
    model.model.norm.weight = torch.nn.Parameter(weight.detach().view(torch.int32), requires_grad=False)
    assert model.model.norm.weight.data_ptr() == weight.data_ptr()
    assert addresses(model) != before


def test_a_capture_that_fails(replayed, monkeypatch):
    def fail(one, *where):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(PromptPass, "capture", fail)
    model = tiny("swila", num_hidden_layers=1)
    prefill(model, [1] * 20)
    with pytest.warns(UserWarning, match="without CUDA graphs, because a capture failed: operation not permitted"):
        assert_same(prefill(model, [1] * 20), as_before(model, [1] * 20))
    prefill(model, [1] * 64)
    with warnings.catch_warnings(action="error"):
        prefill(model, [1] * 64)  # does not try again


@pytest.mark.parametrize(
    ("counts", "fit"),
    [
        ([MOST_TOKENS], True),
        ([MOST_TOKENS, 1], False),
        ([1] * MOST_ROWS, True),
        ([1] * (MOST_ROWS + 1), False),
        ([3, 0], False),
    ],
)
def test_passes_that_are_small(counts, fit, forms):
    model = tiny("swila", num_hidden_layers=1)
    prefill(model, [1])
    assert prompt_graphs._graphs[model].fits(counts) == fit


def test_rows_that_have_ended_keep_their_state(forms):
    model = tiny("temporal-swila", num_hidden_layers=2)
    rows = [tokens(30).tolist(), tokens(7).tolist()]
    found = prefill(model, rows, chunk_size=10)
    assert [form.rows for form in forms(model)] == [2]  # only the first pass has tokens of both
    assert_same(found, as_before(model, rows, chunk_size=10))


def test_weights_and_models_that_go(forms):
    model = tiny("swila", num_hidden_layers=1)
    prefill(model, [1] * 20)
    first = prompt_graphs._graphs[model]
    prefill(model, [1] * 20)
    assert prompt_graphs._graphs[model] is first
    with torch.no_grad():
        model.model.norm.weight = torch.nn.Parameter(model.model.norm.weight * 2)
    assert_same(prefill(model, [1] * 20), as_before(model, [1] * 20))
    assert prompt_graphs._graphs[model] is not first
    release(model)
    assert model not in prompt_graphs._graphs
    prefill(model, [1] * 20)
    there = weakref.ref(model)
    del model, first
    gc.collect()
    assert there() is None


def test_inference_mode(replayed):
    model = tiny("temporal-swila", num_hidden_layers=1)
    for _ in range(2):
        with torch.inference_mode():
            first = prefill(model, [1] * 20)
        second = prefill(model, [3] * 9, state=first)
    assert_same(second, as_before(model, [3] * 9, state=as_before(model, [1] * 20)))


@pytest.mark.parametrize("tokens_given", [1, 63, 64, 65, 511, 512, 513, 1025, 2048, 2049, 16383, 16384])
def test_room(tokens_given):
    """Less than 64 more tokens, or at most a quarter more; what is rounded is a multiple of 64 and stays as it is."""
    room = rounded_up(tokens_given, *ROUNDING)
    assert tokens_given <= room < max(tokens_given + 64, 1.25 * tokens_given + 1)
    assert room % 64 == 0
    assert rounded_up(room, *ROUNDING) == room


def test_few_forms_serve_all_lengths():
    assert len({rounded_up(n, *ROUNDING) for n in range(1, MOST_TOKENS + 1)}) <= 28


@pytest.fixture
def launching(monkeypatch):
    """Each backend only launches kernels, and the values of tensors are not checked."""
    monkeypatch.setattr(capture, "values_are_checked", lambda device: False)

    def choose(name, call):
        return replace(backends.choose_backend(name, call), capturable=True)

    monkeypatch.setattr(capture, "choose_backend", choose)


@pytest.mark.parametrize("name", NAMES)
def test_which_models_only_launch(name, launching):
    assert is_capturable(tiny(name, num_hidden_layers=4 if "hybrid" in name else 2)) == (name in RECURRENT)


def test_what_a_backend_or_checks_read(monkeypatch):
    model = tiny("swila", num_hidden_layers=1).cpu()
    assert not is_capturable(model)  # values are checked on a CPU, and its backends read bounds
    monkeypatch.setattr(capture, "values_are_checked", lambda device: False)
    assert not is_capturable(model)
    monkeypatch.undo()
    monkeypatch.setattr(capture, "choose_backend", lambda name, call: backends.get_backend("cuda"))
    assert not is_capturable(model)
    set_value_checks("never")
    try:
        assert is_capturable(model)
    finally:
        set_value_checks("cpu")


class OwnLinear(torch.nn.Linear):
    pass


def _hook(model):
    model.model.layers[1].mlp.register_forward_hook(lambda *call: None)


def _forward(model):
    model.model.layers[0].forward = model.model.layers[0].forward


def _compiled(model):
    model.model.layers[0].compile()


def _replaced(model):
    model.model.layers[0].mixer.q_proj = OwnLinear(128, 128, bias=False)


def _parametrized(model):
    torch.nn.utils.parametrizations.weight_norm(model.model.layers[0].mixer.o_proj)


def _routing(model):
    model.model.layers[1].mixer.track_routing = True


def _changed(model):
    model.model.layers[1].mixer._change = lambda operands: operands


def _fla(model):
    model.model.layers[1].mixer.backend = "fla"


def _unserved(model):
    model.model.layers[1].mixer.backend = "cuda" if model.device.type == "cpu" else "numba"


def _elsewhere(model):
    model.model.norm.weight = torch.nn.Parameter(model.model.norm.weight.to("meta"))


@pytest.mark.parametrize(
    "change",
    [_hook, _forward, _compiled, _replaced, _parametrized, _routing, _changed, _fla, _unserved, _elsewhere],
)
def test_models_that_do_more_than_launch(change, launching):
    model = tiny("swila", num_hidden_layers=2)
    assert is_capturable(model)
    change(model)
    assert not is_capturable(model)


def test_where_models_are_served(device, monkeypatch):
    model = tiny("swila", num_hidden_layers=1)
    assert prompt_graphs._served(model) == (device == "cuda")
    there = SimpleNamespace(device=torch.device("cuda"), model=model.model)
    with use_fused(True):
        assert prompt_graphs._served(there)
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
        assert not prompt_graphs._served(there)
    monkeypatch.undo()
    with use_fused(False):
        assert not prompt_graphs._served(there)


@pytest.mark.parametrize("name", [*RECURRENT, "post-decay"])
def test_the_problem_is_that_of_the_call(name, monkeypatch):
    if name == "post-decay":
        options = {"decay": "value", "decay_order": "post", "normalize": False, "num_mixtures": 3}
        model = tiny("swila", num_hidden_layers=1, mixer_options=options)
    else:
        model = tiny(name, num_hidden_layers=1)
    calls = []
    known = backends.why_not

    def note(backend, call):
        calls.append(call)
        return known(backend, call)

    monkeypatch.setattr(backends, "why_not", note)
    bounds = torch.tensor([0, 9, 40])
    with torch.no_grad():
        model.model(tokens(1, 40), cu_seqlens=bounds, use_cache=True)
    made = problem(model.model.layers[0].mixer, model.device, model.model.norm.weight.dtype)
    assert calls
    assert {replace(call, T=2) for call in calls} == {made}
