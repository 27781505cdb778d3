"""The facts that the README opens with, from made-up results."""

import json

import pytest
from claims import ROOT
from tools.tables.generation import speedups
from tools.tables.headline import headline
from tools.tables.operation import total_ratios


@pytest.fixture
def records():
    return {
        name: json.loads((ROOT / "results" / f"{name}.json").read_text())
        for name in ("op-cuda", "throughput-training", "generate-cuda", "cdar-tiny")
    }


def facts(records):
    kernels, training, decoding, recall = headline(*records.values()).splitlines()
    return {"kernels": kernels, "training": training, "decoding": decoding, "recall": recall}


def test_kernels_are_compared_with_gated_deltanet(records):
    for i, found in enumerate(records["op-cuda"]["shapes"]):
        for timing in found["timings"]:
            times = {"plain": 1.0, "temporal": 3.0 + i / 10, "gated": 8.0, "GDN": 4.0}
            timing["total_ms"] = times.get(timing["name"], 1.0)
    assert total_ratios(records["op-cuda"], "gated", "GDN") == [2.0] * len(records["op-cuda"]["shapes"])
    told = "take 0.25× (plain SwiLA), 0.75–0.82× (Temporal SwiLA) and 2.00× (SwiLA with a decay per key dim) the time"
    assert told in facts(records)["kernels"]


def test_training_is_compared_at_every_length(records):
    record = records["throughput-training"]
    for row in record["rows"]:
        speeds = {"swila": 12e3 if row["length"] == 2048 else 11e3, "temporal-swila": 9e3}
        row["tokens_per_second"], row["peak_bytes"] = speeds.get(row["model"], 10e3), 10**9
    eager = next(row for row in record["rows"] if row["model"] == "swila") | {"compiled": False}
    record["rows"].append(eager | {"tokens_per_second": 5e3})
    told = facts(records)["training"]
    assert "1.3B parameters train at 1.10–1.20× (SwiLA) and 0.90× (Temporal SwiLA) the tokens per second of" in told
    assert "with 1.00× and 1.00× its peak memory (sequences of 2,048 to 16,384 tokens, our blocks compiled" in told

    of_ours = [row for row in record["rows"] if row["model"] == "swila"]
    record["rows"].remove(of_ours[0])
    with pytest.raises(AssertionError, match="every length"):
        headline(*records.values())


def test_decoding_is_compared_with_transformers(records):
    timings = records["generate-cuda"]["timings"]
    for i, row in enumerate(timings):
        row["token_ms"] = {"swila": 10.0, "swila, compiled": 5.0, "transformers": 80.0 if i else 40.0}
    assert speedups(records["generate-cuda"], "swila") == [4.0] + [8.0] * (len(timings) - 1)
    told = facts(records)["decoding"]
    assert "takes 4.0–8.0 times less time per token" in told
    assert (
        "and 8.0–16.0 times less with `compile=True` (6 models of 374M parameters, batch sizes 1 and 64, H200" in told
    )


def test_recall_counts_seeds(records):
    for row in records["cdar-tiny"]["rows"]:
        row["solved"] = {"temporal-swila": 3, "swila": 2, "deltanet": 1}[row["model"]]
    told = "with the same state size: Temporal SwiLA 3 of 5 seeds, SwiLA 2 of 5 seeds, DeltaNet 1 of 5 seeds"
    assert told in facts(records)["recall"]
    records["cdar-tiny"]["rows"][0]["state"] += 1
    with pytest.raises(AssertionError, match="one state size"):
        headline(*records.values())


def test_headlines_of_another_size_are_not_written(records):
    """The sentence names the size of the models."""
    records["generate-cuda"]["timings"][0]["model"] = "gdn-1.3b"
    with pytest.raises(AssertionError, match="374m"):
        headline(*records.values())
