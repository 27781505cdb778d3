"""Tables of what was timed on a GPU: every pair, also where we are slower, and what is to be said beside it."""

import copy
import json
from pathlib import Path

import pytest
from tools.tables.benchmarks import baseline_tables

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
    assert "Ratios at B1 T64 H2 / B2 T64 H2: under 1 SwiLA takes less" in baseline_tables(record)


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
    assert "2,048 a head; temporal SwiLA carries r and ρ as well, 64 scalars each a head, 6.2% more in all" in text


def test_baselines_that_were_not_checked_are_named():
    record = made_up()
    assert "The results of GDN, DeltaNet and KDA were not checked." in baseline_tables(record)
    for i, found in enumerate(record["shapes"]):
        for timing in found["timings"]:
            if timing["name"] in THEIRS:
                worst = i == (timing["name"] != "GDN")
                timing |= {"errors": {"output": 0.003, "d q": 0.003 + 0.001 * worst}}
    text = baseline_tables(record)
    assert "largest relative error: GDN to 4e-03, DeltaNet to 4e-03, KDA to 4e-03)" in text, "the worst of the shapes"
    assert "not checked" not in text
    record["shapes"][0]["timings"][-1]["errors"] = {}
    text = baseline_tables(record)
    assert "GDN to 4e-03, DeltaNet to 4e-03)" in text
    assert "The results of KDA were not checked." in text


@pytest.mark.parametrize(("triton", "told"), [("3.6.0", True), ("3.4.0", True), ("3.7.1", False), ("3.3.1", False)])
def test_the_refusal_that_is_lifted_is_told(triton, told):
    record = made_up()
    record["environment"]["packages"]["triton"] = triton
    text = baseline_tables(record)
    assert ("refuses GDN's backward on Hopper GPUs" in text) == told
    assert ("heads of 128 are computed in blocks" in text) == told
    for found in record["shapes"]:
        found["timings"] = [timing for timing in found["timings"] if timing["name"] != "GDN"]
    assert "refuses" not in baseline_tables(record)


def test_the_readme_claims_no_more_of_the_kernels_than_was_measured():
    """What its bullet says, pair by pair, at every measured shape."""
    bullet = " ".join((ROOT / "README.md").read_text().split("- **CUDA kernels")[1].split("\n- **")[0].split())
    faster = {
        ("plain", "DeltaNet"),
        ("plain", "GDN"),
        ("plain", "KDA"),
        ("temporal", "GDN"),
        ("temporal", "KDA"),
        ("gated", "KDA"),
    }
    assert "plain SwiLA takes less time than DeltaNet, Gated DeltaNet and KDA" in bullet
    assert "Temporal SwiLA less than Gated DeltaNet and KDA and more than DeltaNet" in bullet
    assert (
        "with a decay per key dim it takes less than KDA, more than the other two, and more memory than all three"
        in bullet
    )
    for found in RECORD["shapes"]:
        by_name = {timing["name"]: timing for timing in found["timings"]}
        for ours in OURS:
            for theirs in THEIRS:
                ratio = by_name[ours]["total_ms"] / by_name[theirs]["total_ms"]
                assert (ratio < 1) == ((ours, theirs) in faster), (ours, theirs)
                if ours == "gated":
                    assert by_name[ours]["peak_bytes"] > by_name[theirs]["peak_bytes"]
