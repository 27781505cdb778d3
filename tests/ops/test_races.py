"""Warps hand over what is in shared memory by barriers: ThreadSanitizer finds what they leave unordered."""

import shutil
import sys

import pytest
import torch
from emulator import launcher
from emulator.races import RaceDetector, races, unusable
from tools import races as tool

from swila.ops.backends import Backend, register_backend, unregister_backend
from swila.ops.cuda.backend import Kernels, saved_like
from swila.testing import VARIANTS, Shape, evaluate, make_call


@pytest.fixture(scope="module")
def sanitizer():
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    if reason := unusable():
        pytest.skip(f"ThreadSanitizer: {reason}")


def found_in(name, shape, stats, **options):
    """Races in the kernels of a call, forward and backward, by kernel."""
    detector = RaceDetector(**options)
    kernels = Kernels(detector)
    register_backend(Backend("emulated", "", kernels.forward, kernels.backward, saved_like))
    try:
        evaluate(make_call(VARIANTS[name], shape, dtype=torch.bfloat16), "emulated", statistics=stats)
    finally:
        unregister_backend("emulated")
    found = {}
    for kernel, of_a_run in detector.found:
        found.setdefault(kernel, []).extend(of_a_run)
    return found


def test_warps_wait_for_what_they_use(sanitizer):
    """The other kernels and forms are run by tools/races.py."""
    found = found_in("temporal", Shape(B=1, T=53, H=1, K=16, V=32, J=4), True, processors=132, order=2)
    assert set(found) == {"forward_split", "backward_split", "sum_parts"}
    assert not any(found.values()), found


def test_a_missing_wait_is_found(sanitizer, monkeypatch):
    """The multiplying warps read what the mixing ones may not have written yet."""
    source = launcher.source

    def changed(kernel):
        before = "    await(MIXED, WITH_MIXERS);\n"
        assert source("forward_split").count(before) == 1
        return source(kernel).replace(before, "    announce(MIXED, WITH_MIXERS);\n")

    monkeypatch.setattr(launcher, "source", changed)
    launcher.build.cache_clear()
    try:
        found = found_in("plain", Shape(B=1, T=37, H=1, K=16, V=16, J=4), False, processors=132)
    finally:
        launcher.build.cache_clear()
    assert any("AT_MIX" in race for race in found["forward_split"])


def test_reports_are_read(tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("first();\n  x[0] = 1;\n  y = x[0];\n")
    frames = f"  #0 write {source}:2 (k.so)\n  #1 run {source}:1\n  Previous read\n  #0 read {source}:3 (k.so)\n"
    race = f"WARNING: ThreadSanitizer: data race (pid=1)\n{frames}"
    assert races(race + race) == ["x[0] = 1; | y = x[0];"]
    assert races("") == []


def test_the_tool_says_what_it_found(monkeypatch, capsys):
    asked = []

    def found(name, processors, stats, order):
        asked.append((name, processors, stats, order))
        yield "forward_split", ["x | y"] if (processors, stats) == (132, True) else []

    monkeypatch.setattr(tool, "races_in", found)
    for arguments, status, runs in ((["--call", "split", "--order", "4"], 1, 4), ([], 1, 8 * len(tool.CALLS))):
        asked.clear()
        monkeypatch.setattr(sys, "argv", ["races.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            tool.main()
        assert ended.value.code == status
        assert len(asked) == len(set(asked)) == runs
        assert f"{runs} runs of kernels, {runs // 4} with races" in capsys.readouterr().out
    monkeypatch.setattr(tool, "races_in", lambda *form: [("backward", [])])
    with pytest.raises(SystemExit) as ended:
        tool.main()
    assert not ended.value.code
