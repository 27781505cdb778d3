"""Tables of docs/performance.md from made-up results: every ratio, bold where it is unfavourable, and verdicts."""

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tools.tables import _performance
from tools.tables.goals import Goal, goals_table
from tools.tables.throughput import (
    NOT_YET,
    generation_throughput_table,
    lanes_table,
    moved_bytes,
    over,
    time_by_kind_table,
    training_table,
)

ROOT = Path(__file__).parents[2]
BEFORE = json.loads((ROOT / "results" / "throughput-before.json").read_text())
WHERE = {
    "environment": {"commit": "abc", "torch": "2", "python": "3", "packages": {}, "gpus": ["A GPU"]},
    "device": "cuda", "dtype": "bfloat16", "dates": ["a"], "size": "1.3b",
}  # fmt: skip


def row(model, speed, peak, length=2048, batch=64, micro=64, **more):
    compiled = not model.startswith("fla-gdn")
    measured = {"tokens_per_second": speed, "peak_bytes": peak, "status": "timed", "reason": None}
    return {"model": model, "length": length, "batch": batch, "micro_batch": micro, "compiled": compiled,
            "kernel": "auto", **measured, **more}  # fmt: skip


def training(*rows, **changes):
    return {**WHERE, "warm_up": 3, "updates": 3, "rows": list(rows), **changes}


TRAINING = training(
    row("fla-gdn", 50e3, 40e9), row("fla-gdn", 40e3, 40e9, 4096, 32, 32),
    row("swila", 60e3, 44e9), row("swila", 38e3, 36e9, 4096, 32, 16),
    row("transformer", 50e3, 40e9),
    row("transformer", None, None, 4096, 32, None, status="out of memory"),
    row("swila", 30e3, 50e9, compiled=False),
)  # fmt: skip


def lines(table):
    return [line for line in table.splitlines() if line.startswith("|")]


def test_training_has_favourable_and_unfavourable_ratios():
    table = training_table(TRAINING)
    assert lines(table)[0] == "| model | T 2,048, batch 64 | T 4,096, batch 32 |"
    assert lines(table)[2] == "| GDN, flash-linear-attention's model | 50.0k, 40.0 GB | 40.0k, 40.0 GB |"
    assert "| SwiLA | 60.0k (1.20), 44.0 GB (**1.10**) | 38.0k (**0.95**), 36.0 GB (0.90) |" in table
    assert "| Transformer++ | 50.0k (1.00), 40.0 GB (1.00) | out of memory |" in table
    assert "micro-batches of 65,536 tokens (sequences at a time, by length: GDN, " in table
    assert "Transformer++ 64, SwiLA 64/16)" in table
    assert "SwiLA without compilation, T 2,048: 30.0k" in table
    assert "kernel" not in table
    assert "processes" not in table
    assert not table.startswith("![")
    assert training_table(TRAINING, "images/x.png").startswith("![")
    assert "](images/x.png)\n\n| model |" in training_table(TRAINING, "images/x.png")


def test_ratios_to_the_baseline_with_tf32_stand_beside():
    rows = [row("fla-gdn", 50e3, 40e9), row("fla-gdn-tf32", 64e3, 40e9), row("swila", 60e3, 44e9)]
    table = training_table(training(*rows))
    assert "| the same with TF32 products | 64.0k, 40.0 GB |" in table
    assert "| SwiLA | 60.0k (1.20 · **0.94**), 44.0 GB (**1.10**) |" in table
    assert "flash-linear-attention's model, and over it with TF32 products; bold" in table
    found = goals(training(*rows), None, None, None)
    assert found["training, 1.3B, every length, SwiLA: tokens/s / GDN"] == ["1.05", "1.20", "required |"]
    assert found["training, 1.3B, every length, SwiLA: tokens/s / GDN with TF32 products"] == [
        "–",
        "**0.94**",
        "**no** |",
    ]
    rows[1]["status"] = "refused"
    assert "TF32" not in training_table(training(rows[0], rows[2]))
    assert "and over it" not in training_table(training(*rows))


def test_what_else_the_note_of_training_says():
    record = training(row("fla-gdn", 1.0, 1.0), row("gdn", 1.0, 1.0, kernel="fla"), dates=["a", "b"])
    table = training_table(record)
    assert "Our GDN layers use flash-linear-attention's kernel." in table
    assert "Measured in 2 processes" in table
    assert "micro-batches" not in table
    alike = training_table(training(*(row(name, 1.0, 1.0, micro=16) for name in ("fla-gdn", "swila"))))
    assert "accumulated over micro-batches of 32,768 tokens. " in alike


def test_ratios_are_bold_where_they_are_unfavourable():
    assert [over(value, True) for value in (0.99, 1.0, 1.2, None)] == ["**0.99**", "1.00", "1.20", "–"]
    assert [over(value, False) for value in (0.99, 1.004, 1.2)] == ["0.99", "1.00", "**1.20**"]


def generated(model, batch, speed, prompt=100.0, step=2.0, **more):
    times = {"tokens_per_second": speed, "prompt_ms": prompt, "step_ms": step, "peak_bytes": 3e9}
    times["call_ms"] = prompt + 128 * step
    return {"model": model, "batch": batch, "compiled": True, "status": "timed", "reason": None, **times, **more}


GENERATION = {
    **WHERE, "prompt": 2048, "new": 128, "calls": 3,
    "rows": [
        generated("transformer", 1, 200.0), generated("transformer", 2, 100.0),
        generated("transformer", 4, None, status="out of memory"),
        generated("gdn", 1, 200.0), generated("gdn", 2, 400.0), generated("gdn", 4, 1000.0),
        generated("swila", 1, 220.0, weights_ms=1.25), generated("swila", 2, 600.0, 50.0, forward_ms=40.0),
        generated("swila", 4, 900.0),
    ],
}  # fmt: skip


def test_generation_is_compared_with_gdn():
    table = generation_throughput_table(GENERATION)
    assert "| SwiLA | 220 (1.10) | 600 (1.50) | 900 (**0.90**) |" in table
    assert "| GDN | 200 | 400 | 1,000 |" in table
    assert "| Transformer++ | 200 | 100 | out of memory |" in table
    assert "| SwiLA | 100, 2.00 | 50, 2.00 | 100, 2.00 |" in table
    assert "| SwiLA | 3.0 | 3.0 | 3.0 |" in table
    assert "bandwidth of a copy: SwiLA 1.6." in table
    assert "on the same tokens: SwiLA **0.80** (batch 2)." in table


def test_generation_with_their_model_has_a_row_and_a_goal():
    theirs = [generated("fla-gdn", batch, speed, compiled=False) for batch, speed in ((1, 40.0), (2, 500.0))]
    rows = [*GENERATION["rows"], *theirs]
    record = GENERATION | {"rows": rows, "copy_bytes_per_ms": 1e9}
    table = generation_throughput_table(record)
    assert "| GDN, flash-linear-attention's model | 40 | 500 | – |" in table
    assert "GDN, flash-linear-attention's model, generates by transformers' generate, eagerly. " in table
    assert "| SwiLA | 220 (1.10) | 600 (1.50) | 900 (**0.90**) |" in table, "over our GDN"
    found = goals(None, None, record, None)
    goal = found["generation, 1.3B, every batch, SwiLA: tokens/s / flash-linear-attention's GDN model"]
    assert goal[1:] == ["1.20", "aim |"]
    assert "transformers' generate" not in generation_throughput_table(GENERATION)


def test_decode_steps_and_prompts_beside_the_transformer():
    """At the largest batch of both, not the largest of either."""
    rows = [*GENERATION["rows"][:-1], generated("swila", 4, 900.0, step=9.0)]
    rows[1] = generated("transformer", 2, 100.0, 50.0, step=7.0)
    table = generation_throughput_table(GENERATION | {"rows": rows})
    told = (
        "At batch 2, a decode step of Transformer++ takes 3.5 times as long as SwiLA's; reading the prompts is 16% of "
    )
    assert f"{told}SwiLA's call and 5% of Transformer++'s." in table
    assert "a decode step of Transformer++" not in generation_throughput_table(GENERATION | {"rows": rows[3:]})


def test_steps_over_what_they_must_move():
    """The largest batch of each model that was timed."""
    least = moved_bytes("gdn", "1.3b", 4, 2048 + 64)
    table = generation_throughput_table(GENERATION | {"copy_bytes_per_ms": least})
    assert "state once at the bandwidth of a copy: Transformer++ " in table
    assert "(batch 2), GDN 2.0 (batch 4), SwiLA " in table
    assert "recurrent state once" not in generation_throughput_table(GENERATION)


def test_bytes_of_a_step():
    """Keys and values of 24 layers of 2,048 dims; 16 heads with four mixtures of 64 x 64, or with one of 128 x 128."""
    weights = moved_bytes("transformer", "1.3b", 0, 100)
    assert 2.6e9 < weights < 2.8e9
    assert moved_bytes("transformer", "1.3b", 3, 100) - weights == 3 * 100 * 24 * 2 * 2048 * 2
    for model, scalars in (("swila", 4 * 64 * 64), ("gdn", 128 * 128)):
        state = moved_bytes(model, "1.3b", 1, 100) - moved_bytes(model, "1.3b", 0, 100)
        assert state == 2 * 4 * 24 * 16 * scalars


def test_backends_of_attention_are_named():
    rows = [dict(each) for each in TRAINING["rows"]]
    assert "torch's backends" not in training_table(TRAINING)
    rows[4]["attention"] = {"backend": "cudnn", "ms": {"cudnn": 1.0, "flash": 2.0}}
    assert "attention runs on the fastest of torch's backends (cudnn)." in training_table(training(*rows))


def lanes(plain, gdn):
    shape = {"B": 8, "T": 4096, "H": 8, "K": 64, "V": 64, "J": 4}
    timings = [
        {"name": name, "forward_ms": forward, "total_ms": total}
        for name, (forward, total) in {"plain": plain, "temporal": (None, None), "GDN": gdn}.items()
    ]
    return {**WHERE, "repeats": 5, "shapes": [{"shape": shape, "timings": timings}]}


def test_few_lanes_before_and_now():
    table = lanes_table(lanes((1.0, 3.0), (2.0, 2.0)), BEFORE)
    assert "| B8 T4096 H8 | 64 | plain | 0.82 | 0.50 | 1.00 | **1.11** | **1.50** | 3.00 |" in table
    assert "| B8 T4096 H8 | 64 | temporal | 0.93 | – | – | **1.38** | – | – |" in table
    assert "commit `0030875`" in table


def profiled(model, length=4096, **kinds):
    return row(model, 1.0, 1.0, length, 8, 8, profile={"kinds": kinds, "longest": {}})


def test_time_by_kind_before_and_now():
    record = training(
        profiled("swila", recurrence=40.0, loss=2.0), profiled("swila", 2048, recurrence=1.0),
        profiled("fla-gdn", recurrence=50.0), size="374m",
    )  # fmt: skip
    table = time_by_kind_table(record, BEFORE)
    assert lines(table)[0] == "| kernels | SwiLA, before | GDN, flash-linear-attention's model | SwiLA |"
    assert "| recurrence | 62 | 50.0 | 40.0 |" in table
    assert "| loss | – | – | 2.0 |" in table
    assert "| matrix products | 110 | – | – |" in table
    assert "| all kernels | 243 | 50.0 | 42.0 |" in table
    other = time_by_kind_table(record | {"size": "1.3b"}, BEFORE)
    assert lines(other)[0] == "| kernels | GDN, flash-linear-attention's model | SwiLA |"
    assert "before" not in other.lower()
    assert time_by_kind_table(TRAINING, BEFORE) == NOT_YET
    assert "float32" not in table
    record["rows"][2]["profile"]["longest"] = {"cutlass_80_simt_sgemm_128": 42.22, "nvjet": 1.0, "a_simt_sgemm": 1.0}
    told = (
        "Of the matrix products of GDN, flash-linear-attention's model, 43.2 ms are in float32, without tensor cores."
    )
    assert told in time_by_kind_table(record, BEFORE)


def test_kinds_of_the_earlier_update_are_its_whole_time():
    assert sum(BEFORE["update"]["kinds"].values()) == BEFORE["update"]["update_ms"]


@pytest.mark.parametrize(
    ("must", "aim", "now", "verdict"),
    [
        (1.0, 1.2, [1.3, 1.25], "aim"), (1.0, 1.2, [1.3, 1.1], "required"), (1.0, 1.2, [1.3, 0.99], "**no**"),
        (2.0, 1.3, [1.2], "aim"), (2.0, 1.3, [1.2, 1.9], "required"), (2.0, 1.3, [2.1, 1.0], "**no**"),
        (2.0, 1.3, [], "not measured"), (1.0, 1.2, [0.996], "required"),
    ],
)  # fmt: skip
def test_the_worst_value_decides_on_a_goal(must, aim, now, verdict):
    assert Goal("x", must, aim, None, now).reached() == verdict


def goals(*records):
    return {
        line.split(" | ")[0].strip("| "): line.split(" | ")[3:] for line in lines(goals_table(BEFORE, *records))[2:]
    }


def test_goals_of_the_operation_and_of_training():
    medium = training(
        row("fla-gdn", 100.0, 10.0, 4096, 8), row("swila", 120.0, 12.0, 4096, 8),
        row("temporal-swila", 90.0, 12.0, 4096, 8), row("swila", 108.0, 9.0, 4096, 8, compiled=False), size="374m",
    )  # fmt: skip
    found = goals(TRAINING, medium, None, lanes((1.0, 3.0), (2.0, 2.0)))
    assert len(found) == 20
    assert found["operation, B8 T4096 H8, plain: time of forward + backward / GDN"] == ["1.11", "**1.50**", "**no** |"]
    assert found["operation, B1 T65536 H8, plain: time of forward / GDN"] == ["3.40", "–", "not measured |"]
    assert found["training, 374M, T 4,096, batch 8, SwiLA: tokens/s / GDN"] == ["1.01", "1.20", "required |"]
    assert found["training, 374M, T 4,096, batch 8, Temporal SwiLA: tokens/s / GDN"][1:] == ["**0.90**", "**no** |"]
    assert found["training, 374M, T 4,096, batch 8, SwiLA: peak memory / GDN"] == ["1.38", "**1.20**", "**no** |"]
    assert found["training, 374M, SwiLA: tokens/s without compilation / compiled"] == ["0.67", "0.90", "required |"]
    large = found["training, 1.3B, every length, SwiLA: tokens/s / GDN"]
    assert large == ["1.05", "**0.95**", "**no** |"], "the worst length"


def test_goals_of_generation():
    found = goals(None, None, GENERATION, None)
    assert found["generation, 1.3B, every batch, SwiLA: tokens/s / our GDN"][1:] == ["**0.90**", "**no** |"]
    largest = found["generation, 1.3B, largest batch that both run, SwiLA: tokens/s / Transformer++"]
    assert largest[1:] == ["6.00", "required |"]
    step = found["generation, 1.3B, batch 1, SwiLA: time of a step / reading the weights once"]
    assert step == ["4.58", "1.60", "required |"]
    reading = found["generation, 1.3B, SwiLA: speed of reading prompts / a compiled forward"]
    assert reading[1:] == ["**0.80**", "**no** |"]


def test_tables_do_without_results():
    found = _performance(BEFORE, None, None, None, None)
    assert {name for name, table in found.items() if table == NOT_YET} == set(found) - {"throughput-goals"}
    with_results = _performance(BEFORE, TRAINING, None, GENERATION, None)
    assert "](images/throughput-training.png)" in with_results["throughput-training"]
    assert "](images/throughput-generation.png)" in with_results["throughput-generation"]
