"""Configurations of baselines' kernels that are chosen once, with Triton's own autotuner."""

import json

import pytest

pytest.importorskip("triton")

from triton import testing
from triton.runtime import autotuner

from swila.benchmarks.tuned import Choices, kept_in

ENVIRONMENT = {"packages": {"triton": "3", "flash-linear-attention": "0.6"}, "gpus": ["A GPU"], "date": "today"}


class Kernel:
    """As much of a compiled function as the autotuner needs; a launch notes its configuration."""

    def __init__(self, speeds):
        self.speeds, self.launched = speeds, []

    @staticmethod
    def fn(size, BLOCK): ...

    def run(self, size, BLOCK, **options):
        self.launched.append(BLOCK)


def make(speeds, key=("size",), own=True):
    """An autotuner of a kernel with a time for each size of blocks, and the list of what was timed."""
    timed, kernel = [], Kernel(speeds)

    def bench(call, quantiles):
        call()
        timed.append(kernel.launched.pop())
        return [speeds[timed[-1]]] * 3

    configurations = [autotuner.Config({"BLOCK": block}) for block in speeds]
    return autotuner.Autotuner(
        kernel, ["size", "BLOCK"], configurations, list(key), None, None, do_bench=bench if own else None
    ), kernel, timed  # fmt: skip


PACKAGE = __name__ + "."


def call(path, tuner, *sizes):
    with kept_in(Choices(path, ENVIRONMENT), PACKAGE):
        for size in sizes:
            tuner.run(size)


def test_a_later_process_uses_what_was_chosen(tmp_path):
    path = tmp_path / "new" / "tuned.json"
    tuner, kernel, timed = make({16: 3.0, 32: 1.0, 64: 2.0})
    call(path, tuner, 5, 5)
    assert (sorted(timed), kernel.launched) == ([16, 32, 64], [32, 32])
    (record,) = json.loads(path.read_text())["kernels"].values()
    assert list(record) == ["[5]"]
    assert record["[5]"].startswith("BLOCK: 32, ")

    tuner, kernel, timed = make({16: 1.0, 32: 2.0, 64: 3.0})  # which would choose otherwise
    call(path, tuner, 5)
    assert (timed, kernel.launched) == ([], [32])
    call(path, tuner, 7)
    assert (sorted(timed), kernel.launched) == ([16, 32, 64], [32, 16])
    (record,) = json.loads(path.read_text())["kernels"].values()
    assert list(record) == ["[5]", "[7]"]


def test_each_context_has_its_own_file(tmp_path):
    tuner, _, timed = make({16: 3.0, 32: 1.0})
    call(tmp_path / "first.json", tuner, 5)
    tuner.run(7)
    call(tmp_path / "second.json", tuner, 5, 9)
    assert len(timed) == 6
    for name, keys in (("first", ["[5]"]), ("second", ["[9]"])):
        (record,) = json.loads((tmp_path / f"{name}.json").read_text())["kernels"].values()
        assert list(record) == keys


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"benchmark": "op", "environment": ENVIRONMENT}))
    with pytest.raises(ValueError, match="tuned must be a file that an earlier call has written, got "):
        Choices(path, ENVIRONMENT)


def test_a_configuration_that_is_no_more_is_tuned_again(tmp_path):
    call(tmp_path / "t.json", make({16: 3.0, 32: 1.0})[0], 5)
    tuner, kernel, timed = make({16: 3.0, 64: 1.0})
    call(tmp_path / "t.json", tuner, 5)
    assert (sorted(timed), kernel.launched) == ([16, 64], [64])


def test_other_packages_are_left_alone(tmp_path):
    tuner, _, timed = make({16: 3.0, 32: 1.0})
    with kept_in(Choices(tmp_path / "t.json", ENVIRONMENT)):
        tuner.run(5)
    assert sorted(timed) == [16, 32]
    assert not (tmp_path / "t.json").exists()


def test_after_the_context_tuning_is_as_before(tmp_path):
    before = autotuner.Autotuner.run
    with kept_in(None):
        assert autotuner.Autotuner.run is before
    with pytest.raises(KeyError), kept_in(Choices(tmp_path / "t.json", ENVIRONMENT), PACKAGE):
        raise KeyError
    assert autotuner.Autotuner.run is before


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"gpus": ["Another"]}, "gpus is"),
        ({"packages": {"triton": "4", "flash-linear-attention": "0.6"}}, r"packages\.triton is 3"),
    ],
)
def test_choices_of_another_machine_are_refused(tmp_path, change, what):
    call(tmp_path / "t.json", make({16: 3.0, 32: 1.0})[0], 5)
    Choices(tmp_path / "t.json", ENVIRONMENT | {"date": "tomorrow"})
    with pytest.raises(ValueError, match=f"tuned must be a file of the same GPU and versions, but in .* {what}"):
        Choices(tmp_path / "t.json", ENVIRONMENT | change)
    with pytest.raises(ValueError, match="tuned must be a file, got the directory"):
        Choices(tmp_path, ENVIRONMENT)


def test_measurements_are_shorter_than_tritons_own(tmp_path, monkeypatch):
    durations = []

    def bench(call, quantiles, warmup=25, rep=100):
        call()
        durations.append((warmup, rep))
        return [1.0] * 3

    monkeypatch.setattr(testing, "do_bench", bench)
    tuner, *_ = make({16: 3.0, 32: 1.0}, own=False)
    call(tmp_path / "tuned.json", tuner, 5)
    assert durations == [(5, 25), (5, 25)]
    assert "do_bench" not in vars(tuner)
