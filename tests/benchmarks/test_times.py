"""What benchmarks make of the times they take, with a clock of one's own."""

from types import SimpleNamespace

import pytest
import torch

from swila.benchmarks import op
from swila.testing import VARIANTS, Shape

SHAPE = Shape(B=2, T=3, H=1, K=4, V=5, J=2)


def test_of_backends(monkeypatch):
    turns = {"blocked": [(9.0, 9.0), (0.002, 0.004)], "reference": [(0.003, 0.016)]}
    monkeypatch.setattr(op, "run", lambda call, name: turns[name][0] if len(turns[name]) == 1 else turns[name].pop(0))
    monkeypatch.setattr(op, "peak_memory", lambda work, device: 7)
    found = op.benchmark(SHAPE, VARIANTS["plain"], torch.float32, "cpu", ["blocked", "reference"], repeats=3)
    blocked, reference = found
    assert (blocked.forward_ms, blocked.total_ms) == pytest.approx((2, 4)), "without the one that warms up"
    assert (reference.forward_ms, reference.total_ms) == pytest.approx((3, 16))
    assert (blocked.times_faster, reference.times_faster) == pytest.approx((4, 1))
    assert blocked.total_ms_all == pytest.approx([4, 4, 4])
    assert blocked.peak_bytes == 7


def test_a_run_is_a_forward_and_both(monkeypatch):
    times = iter([10.0, 11.0, 14.0])
    monkeypatch.setattr(op, "now", lambda tensors: next(times))
    call = op.make_call(VARIANTS["plain"], SHAPE, initial_state=False)
    assert op.run(call, "blocked") == (1.0, 4.0)


def test_bytes_of_inputs_and_gradients():
    token = 4 + 4 + 5 + 3 * 2 * 5
    assert op.input_bytes(SHAPE, VARIANTS["plain"], torch.bfloat16) == 2 * 6 * 2 * token


def test_of_generation(monkeypatch):
    """The time of a token is that of all after the first; the median of the turns counts."""
    pytest.importorskip("transformers")
    from swila.benchmarks import generation

    clock, slow = [0.0], iter([0, 0, 0, 5, 0])
    monkeypatch.setattr(generation, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def work(*arguments):
        clock[0] += 1.0 + 0.25 * arguments[-1] + (next(slow, 0) if arguments[-1] > 1 else 0)

    monkeypatch.setattr(generation, "_by_swila", work)
    monkeypatch.setattr(generation, "_by_transformers", work)
    model = generation.SwiLAForCausalLM(generation.SwiLAConfig.preset("swila-tiny", vocab_size=20)).eval()
    found = generation._time(model, "swila-tiny", 2, prompt=3, new=9, compiled=False, repeats=3)
    assert found.token_ms == pytest.approx({"swila": 250.0, "transformers": 250.0})
    assert found.start_s["swila"] == pytest.approx(1 + 9 / 4)


def test_models_that_generate_other_tokens_are_not_timed(monkeypatch):
    pytest.importorskip("transformers")
    from swila.benchmarks import generation

    assert generation.refused("swila-tiny", "cpu") is None
    right = generation.generate

    def last_token_changed(*arguments, **options):
        tokens = right(*arguments, **options).tokens
        return SimpleNamespace(tokens=[*tokens[:-1], [*tokens[-1][:-1], tokens[-1][-1] + 1]])

    monkeypatch.setattr(generation, "generate", last_token_changed)
    reason = "swila-tiny generates other tokens than with transformers' generate"
    assert generation.refused("swila-374m", "cpu") == reason


def test_what_does_not_fit_is_a_row(monkeypatch):
    """The other ways and cases are timed all the same, and saved after each."""
    pytest.importorskip("transformers")
    from swila.benchmarks import generation

    def prefill(model, ids):
        if len(ids) == 3:
            raise torch.OutOfMemoryError
        return SimpleNamespace(num_bytes=lambda: 5)

    def too_large(*arguments):
        raise torch.OutOfMemoryError

    released, saved = [], []
    monkeypatch.setattr(generation, "refused", lambda name, device: "wrong" if name == "gdn-tiny" else None)
    monkeypatch.setattr(generation, "prefill", prefill)
    monkeypatch.setattr(generation, "_by_swila", lambda *arguments: None)
    monkeypatch.setattr(generation, "_by_transformers", too_large)
    monkeypatch.setattr(generation, "release", released.append)
    names = ["swila-tiny", "gdn-tiny"]
    rows, wrong = generation.benchmark(
        names,
        [3, 2],
        4,
        17,
        "cpu",
        torch.float32,
        False,
        1,
        save=lambda *found: saved.append((len(found[0]), *found[1])),
    )
    assert saved == [(1,), (2,), (2, "gdn-tiny")]
    assert wrong == {"gdn-tiny": "wrong"}
    assert rows[0] == generation.Timing("swila-tiny", 3, None, {}, {}, None, None, ("prompts",))
    assert (rows[1].batch, rows[1].state_bytes, rows[1].out_of_memory) == (2, 5, ("transformers",))
    assert list(rows[1].token_ms) == list(rows[1].start_s) == ["swila"]
    assert len(released) >= 3
