"""``tools/compile_warm_up.py``: every model at every length is compiled, a few at once."""

import sys

import pytest

pytest.importorskip("transformers")

from tools import compile_warm_up as warm_up

from swila.benchmarks.throughput import checks, generation


def note(folder, name):
    """A process that notes how many run beside it."""
    code = (
        f"import pathlib, time; folder = pathlib.Path({str(folder)!r}); own = folder / '{name}.running'; own.touch(); "
        f"time.sleep(0.3); count = len(list(folder.glob('*.running'))); own.unlink(); "
        f"(folder / '{name}.beside').write_text(str(count)); raise SystemExit({int(name == 'c')})"
    )
    return [sys.executable, "-c", code]


def test_all_run_a_few_at_once_and_failures_are_told(tmp_path):
    assert warm_up.run_all([note(tmp_path, name) for name in "abcde"], 2) == [0, 0, 1, 0, 0]
    beside = [int(path.read_text()) for path in tmp_path.glob("*.beside")]
    assert len(beside) == 5
    assert max(beside) <= 2


def test_each_model_and_length_has_a_process(monkeypatch):
    commands = []
    monkeypatch.setattr(warm_up, "run_all", lambda given, jobs: commands.extend(given) or [0] * 3 + [1])
    words = "--model swila --model hybrid-gdn --length 64 --length 128 --tokens 256 --size tiny --device cpu"
    monkeypatch.setattr(sys, "argv", ["compile_warm_up.py", *words.split()])
    with pytest.raises(SystemExit, match=r"^hybrid-gdn at 128 failed"):
        warm_up.main()
    assert [command[2:6] for command in commands] == [
        ["--model", model, "--length", length] for model in ("swila", "hybrid-gdn") for length in ("64", "128")
    ]
    assert all(command[6:] == [*words.split()[8:], "--case"] for command in commands)


def test_a_case_is_compiled_as_by_the_benchmark(monkeypatch):
    found = {}

    def compiled(model, fullgraph):
        found["model"], found["fullgraph"] = model, fullgraph

    monkeypatch.setattr(checks, "compile_blocks", compiled)
    warm_up.compile_case("hybrid-temporal-swila", "tiny", 32, 64, "cpu")
    assert found["fullgraph"]
    assert len({type(block.mixer) for block in found["model"].model.layers}) == 2
    assert all(p.grad is not None for p in found["model"].parameters())


def test_each_model_has_a_process_for_generation(monkeypatch):
    commands = []
    monkeypatch.setattr(warm_up, "run_all", lambda given, jobs: commands.extend(given) or [0, 1])
    words = "--model swila --model gdn --generation --batch 1 --batch 3 --prompt 9 --size tiny --device cpu"
    monkeypatch.setattr(sys, "argv", ["compile_warm_up.py", *words.split()])
    with pytest.raises(SystemExit, match=r"^gdn failed"):
        warm_up.main()
    assert [command[2:] for command in commands] == [
        ["--model", model, *words.split()[4:], "--case"] for model in ("swila", "gdn")
    ]


@pytest.mark.parametrize("words", ["--model swila", "--model swila --length 8 --generation"])
def test_either_lengths_or_generation(monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["compile_warm_up.py", *words.split()])
    with pytest.raises(SystemExit):
        warm_up.main()


def test_generation_is_run_as_by_the_benchmark(monkeypatch):
    """At every batch size, with the prompts of the benchmark, and the forward of the largest."""
    calls, real = [], generation.measure
    monkeypatch.setattr(generation, "measure", lambda *args: calls.append(args[1:]) or real(*args))
    monkeypatch.setattr(generation, "forward_ms", lambda model, batch, setting: calls.append(("forward", batch)))
    words = "--model hybrid-gdn --generation --batch 1 --batch 3 --prompt 9 --size tiny --device cpu --case"
    monkeypatch.setattr(sys, "argv", ["compile_warm_up.py", *words.split()])
    warm_up.main()
    assert [call[:1] if call[0] != "forward" else call for call in calls] == [(1,), (3,), ("forward", 3)]
    assert {(call[1].prompt, call[1].new, call[1].size) for call in calls[:2]} == {(9, 4, "tiny")}
