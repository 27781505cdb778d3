"""What ``tools/sanitize.py`` makes of compute-sanitizer's output: nothing is lost, and only the known is filtered."""

from pathlib import Path

import pytest
from tools import sanitize


def race(one, other):
    return f"""========= Error: Race reported between Write access at swila_{one}(Arguments)+0x1230 in swila_{one}.cu:90
=========     and Read access at swila_{other}(Arguments)+0x1e40 in swila_{other}.cu:120 [4096 hazards]
========="""


INVALID = """========= Invalid __global__ read of size 4 bytes
=========     at swila_backward(Arguments)+0xa60
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f2 is out of bounds
========="""
HEAD, TAIL = "========= COMPUTE-SANITIZER", "========= {}SUMMARY: {} hazards displayed (1 errors, 0 warnings)"


def test_every_report_is_found():
    text = "\n".join([HEAD, INVALID, race("step", "step"), TAIL.format("RACECHECK ", 2)])
    found = sanitize.reports(text)
    assert len(found) == 2
    assert [sanitize.kernel_of(report) for report in found] == ["backward", "step"]
    assert sanitize.reports("\n".join([HEAD, TAIL.format("", 0).replace("hazards", "errors")])) == []


def test_only_the_known_report_about_one_kernel_alone_is_expected():
    def expected(tool, report):
        return (tool, sanitize.kernel_of(report)) in sanitize.EXPECTED

    assert expected("racecheck", race("forward_split", "forward_split"))
    assert not expected("memcheck", race("forward_split", "forward_split"))
    assert not expected("racecheck", race("forward_split", "backward"))
    assert not expected("racecheck", race("forward", "forward"))
    assert not expected("racecheck", INVALID)
    assert all(len(reason) > 100 for reason in sanitize.EXPECTED.values()), "each with its reason"


@pytest.mark.parametrize(("text", "left", "filtered"), [
    ([HEAD, race("forward_split", "forward_split"), TAIL.format("RACECHECK ", 1)], 0, 1),
    ([HEAD, race("backward", "backward"), race("forward_split", "forward_split"), TAIL.format("RACECHECK ", 2)], 1, 1),
    ([HEAD, TAIL.format("RACECHECK ", 0)], 0, 0),
    ([HEAD, TAIL.format("RACECHECK ", 3)], 1, 0),
    ([HEAD], 1, 0),
])  # fmt: skip
def test_what_is_left_of_a_run(monkeypatch, text, left, filtered):
    """Reports of a form that is not known, or no summary at all, are not taken for a clean run."""

    def run(command, **options):
        Path(command[command.index("--log-file") + 1]).write_text("\n".join(text))
        return type("Done", (), {"returncode": 0, "stdout": '{"launched": ["step"], "wrong": []}', "stderr": ""})

    monkeypatch.setattr(sanitize.subprocess, "run", run)
    monkeypatch.setattr(sanitize, "compute_sanitizer", lambda: "compute-sanitizer")
    kernels, reports, expected = sanitize.sanitize("racecheck", "split")
    assert (kernels, len(reports), expected) == ({"step"}, left, filtered)


def test_a_call_that_is_wrong_or_dies_is_not_clean(monkeypatch):
    done = type("Done", (), {"returncode": 1, "stdout": "", "stderr": "Traceback"})
    monkeypatch.setattr(sanitize.subprocess, "run", lambda *args, **options: done)
    monkeypatch.setattr(sanitize, "compute_sanitizer", lambda: "compute-sanitizer")
    assert "did not finish: Traceback" in sanitize.sanitize("memcheck", "split")[1][0]


def test_calls_are_of_every_precision_and_form():
    from swila.testing import VARIANTS

    assert {dtype for dtype, *_ in sanitize.CALLS.values()} == {"bfloat16", "float16", "float32"}
    assert {VARIANTS[name].decay for _, name, *_ in sanitize.CALLS.values()} == {None, "key", "value", "head"}
