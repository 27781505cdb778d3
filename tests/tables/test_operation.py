"""Tables of what was timed on a GPU: every ratio, also where SwiLA is slower, and the notes beside them."""

import copy
import json
from pathlib import Path

import pytest
from tools.tables.operation import baseline_tables, ratio_table

from swila.benchmarks.baselines import pairs

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "op-cuda.json").read_text())
OURS, THEIRS = ("plain", "temporal", "gated"), ("GDN", "DeltaNet", "KDA")


def made_up(**changes):
    """A record of two shapes; of each contender the time of a forward, of both, and the peak, twice at the second."""
    numbers = {
        "plain": (1.0, 4.0, 10), "temporal": (2.0, 6.0, 20), "gated": (4.0, 9.0, 60),
        "GDN": (2.0, 8.0, 20), "DeltaNet": (4.0, 5.0, 40), "KDA": (8.0, 18.0, 30),
    } | changes  # fmt: skip
    shapes = []
    for scale in (1, 2):
        timings = []
        for name, (forward, total, peak) in numbers.items():
            own = {"forward_ms": scale * forward, "total_ms": total, "peak_bytes": peak} if forward else {}
            blank = {"forward_ms": None, "total_ms": None, "peak_bytes": None}
            fixed = {"name": name, "floor_ms": 1.0, "total_floor_ms": 1.0, "kept_ratio": 1.0, "refused": None}
            timings.append(fixed | blank | own)
        shapes.append({"shape": {"B": scale, "T": 64, "H": 2, "K": 32, "V": 16, "J": 4}, "timings": timings})
    return copy.deepcopy(
        {key: RECORD[key] for key in ("environment", "device", "repeats", "decode")} | {"shapes": shapes}
    )


def test_every_pair_is_ours_over_theirs():
    rows = {row[0]: row[1:] for row in pairs(made_up())}
    assert list(rows) == [f"{ours} / {theirs}" for ours in OURS for theirs in THEIRS]
    assert rows["plain / GDN"] == ("0.50 / 0.50", "0.50 / 0.50", "0.50 / 0.50")
    assert rows["temporal / DeltaNet"] == ("0.50 / 0.50", "**1.20** / **1.20**", "0.50 / 0.50")
    assert rows["gated / KDA"] == ("0.50 / 0.50", "0.50 / 0.50", "**2.00** / **2.00**")
    assert rows["temporal / GDN"] == ("1.00 / 1.00", "0.75 / 0.75", "1.00 / 1.00")


def test_shapes_are_told_apart():
    record = made_up()
    record["shapes"][1]["timings"][0]["total_ms"] = 16.0
    assert {row[0]: row[2] for row in pairs(record)}["plain / GDN"] == "0.50 / **2.00**"
    assert "Ratios at B1 T64 H2 / B2 T64 H2. Below 1, SwiLA takes less" in baseline_tables(record)


def test_what_was_not_timed_is_a_dash():
    rows = {row[0]: row[1:] for row in pairs(made_up(KDA=(None, None, None)))}
    assert rows["plain / KDA"] == ("– / –", "– / –", "– / –")
    assert rows["plain / GDN"][0] == "0.50 / 0.50"
    assert "| B1 T64 H2 | KDA |" not in baseline_tables(made_up(KDA=(None, None, None)))


def test_committed_pairs_show_where_we_are_slower():
    rows = {row[0]: row[1:] for row in pairs(RECORD)}
    assert len(rows) == 9
    for found, timing in zip(
        RECORD["shapes"], zip(*(cell.split(" / ") for cell in rows["temporal / DeltaNet"]), strict=True), strict=True
    ):
        by_name = {each["name"]: each for each in found["timings"]}
        for cell, what in zip(timing, ("forward_ms", "total_ms", "peak_bytes"), strict=True):
            assert float(cell.strip("*")) == pytest.approx(
                by_name["temporal"][what] / by_name["DeltaNet"][what], abs=0.005
            )


def test_states_of_the_same_size_have_more_beside_them():
    text = baseline_tables(made_up())
    assert "2,048 scalars per head; temporal SwiLA also carries r and ρ, 64 scalars each per head (6.2% more)" in text


def test_baselines_that_were_not_checked_are_named():
    record = made_up()
    assert "The results of GDN, DeltaNet and KDA were not checked." in baseline_tables(record)
    for i, found in enumerate(record["shapes"]):
        for timing in found["timings"]:
            if timing["name"] in THEIRS:
                worst = i == (timing["name"] != "GDN")
                timing |= {"errors": {"output": 0.003, "d q": 0.003 + 0.001 * worst}}
    text = baseline_tables(record)
    assert "largest relative errors: GDN 4e-03, DeltaNet 4e-03, KDA 4e-03)" in text, "the worst of the shapes"
    assert "not checked" not in text
    record["shapes"][0]["timings"][-1]["errors"] = {}
    text = baseline_tables(record)
    assert "GDN 4e-03, DeltaNet 4e-03)" in text
    assert "The results of KDA were not checked." in text


@pytest.mark.parametrize(("triton", "told"), [("3.6.0", True), ("3.4.0", True), ("3.7.1", False), ("3.3.1", False)])
def test_the_refusal_that_is_lifted_is_told(triton, told):
    record = made_up()
    record["environment"]["packages"]["triton"] = triton
    text = baseline_tables(record)
    assert ("refuses GDN's backward on Hopper GPUs" in text) == told
    assert ("head dim 128 uses blocks of 128" in text) == told
    for found in record["shapes"]:
        found["timings"] = [timing for timing in found["timings"] if timing["name"] != "GDN"]
    assert "refuses" not in baseline_tables(record)


def test_ranges_over_the_shapes():
    record = made_up()
    record["shapes"][1]["timings"][0]["total_ms"] = 16.0
    text = ratio_table(record)
    assert "| plain / GDN | 0.50 | **0.50–2.00** | 0.50 |" in text
    assert "| temporal / DeltaNet | 0.50 | **1.20** | 0.50 |" in text
    assert "| temporal / GDN | 1.00 | 0.75 | 1.00 |" in text
    assert "Ranges are over 2 shapes (B1 T64 H2 and B2 T64 H2)." in text
    assert "SwiLA has K = 32, V = 16 and J = 4" in text
    assert "| plain / KDA | – | – | – |" in ratio_table(made_up(KDA=(None, None, None)))


def test_committed_ranges_have_every_pair():
    rows = [line for line in ratio_table(RECORD).splitlines() if " / " in line.split(" | ")[0]]
    assert [row.split(" | ")[0].strip("| ") for row in rows[1:]] == [f"{a} / {b}" for a in OURS for b in THEIRS]
