"""``tools/kernel_times.py`` and ``tools/kernel_profile.py``, as far as they need no GPU."""

import math
from dataclasses import replace

import pytest
from tools import kernel_profile as profile
from tools import kernel_times as times

from swila.ops.fused.choice import use_fused


def test_cases_are_read_from_words():
    assert times.Case.parse("temporal:8,4096,2") == times.Case("temporal", (8, 4096, 2), False)
    assert times.Case.parse("plain:1,64,2,128,32") == times.Case("plain", (1, 64, 2, 128, 32))
    assert times.Case.parse("plain:1,64,2:s").stats
    assert times.Case.parse("conv:4096") == times.Case("conv", (4096,))
    for word in ("plain:1,64", "plain:1,64,2:x", "plain:1,64,x", "plain:4096", "conv", "conv:1,64,2", "conv:64:s"):
        with pytest.raises(SystemExit, match="a case must be"):
            times.Case.parse(word)


@pytest.mark.parametrize("name", ["conv", "norm", "heads", "swiglu", "expand"])
def test_pieces_are_checked_against_plain_torch(name, monkeypatch):
    assert name in times.PIECES
    work = times.piece(name, 40, "cpu")
    with use_fused(name != "expand"):  # the interpreter has no products of bfloat16
        found = times.errors_of(work)
    assert list(found) == ["output", *(leaf for leaf, t in work.leaves.items() if t.requires_grad)]
    assert times.wrong({name: found}) == []
    flawed = replace(work, function=lambda **x: [2 * part for part in work.function(**x)])
    assert times.wrong({name: times.errors_of(flawed)}) == [name]


def test_times_beside_the_least():
    ms = {"forward": 0.25, "both": 1.0}
    assert times.in_short("plain:1,64,2", ms) == "plain:1,64,2 0.250 1.000"
    ms |= {"forward at least": 0.2, "both at least": 0.5}
    assert times.in_short("conv:64", ms) == "conv:64 0.250 1.000 (at least 0.200 0.500)"


@pytest.mark.parametrize("error", [0.031, math.inf, math.nan])
def test_a_wrong_tree_is_found(error):
    right = {"output": 0.003, "q": 0.004}
    assert times.wrong({"plain": right}) == []
    assert times.wrong({"plain": right, "temporal": {**right, "q": error}}) == ["temporal"]


def test_a_tree_that_fails_stops_the_comparison(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError")
    process = times.start(tmp_path, "check", ["plain:1,64,2"])
    with pytest.raises(SystemExit, match="failed"):
        times.answers(process, ["plain:1,64,2"])


HEADINGS = [
    "Address", "Source", "Warp Stall Sampling (All Samples)", "Instructions Executed", "stall_wait", "stall_barrier",
    "stall_wait (Not Issued)",
]  # fmt: skip
CODE = [
    ("IMAD R1", 10, 64, 10, 0),
    ("FADD R2", 30, 64, 30, 0),
    ("BAR.SYNC", 40, 64, 0, 40),
    ("BRA", 0, 64, 0, 0),
    ("FMUL R3", 19, 64, 19, 0),
    ("EXIT", 1, 32, 1, 0),
]


@pytest.fixture
def table():
    rows = [("Kernel Name", "swila_forward"), HEADINGS]
    rows += [
        (f"0x{i}", text, samples, executed, wait, barrier, wait)
        for i, (text, samples, executed, wait, barrier) in enumerate(CODE)
    ]
    return "\n".join(",".join(f'"{value}"' for value in row) for row in rows) + "\n"


def test_blocks_end_at_barriers_branches_and_other_counts(table):
    code = profile.read(table)
    assert [each.samples for each in code] == [10, 30, 40, 0, 19, 1]
    assert profile.blocks(code) == [(0, 2), (2, 4), (4, 5), (5, 6)]


def test_the_report_has_shares_and_reasons(table):
    lines = profile.report(profile.read(table), (1, 2))
    assert [line.split()[4] for line in lines[1:5]] == ["40.0", "40.0", "19.0", "1.0"]
    assert [line.split()[6] for line in lines[1:3]] == ["wait:100", "barrier:100"]
    assert lines[5].split() == ["1", "30", "FADD", "R2", "wait:100"]
