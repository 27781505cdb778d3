"""Tables of pretraining from made-up results: every number and verdict follows the results."""

import pytest
from tools.tables.pretraining import (
    fla_table,
    initialization_table,
    plan_table,
    small_runs_table,
    start_table,
    throughput_table,
)

WHERE = {
    "environment": {"commit": "abc", "torch": "2", "python": "3", "packages": {}, "gpus": ["A GPU"]},
    "device": "cuda",
}


def speed(tokens, milliseconds):
    return {"tokens_per_second": tokens, "milliseconds": milliseconds, "mfu": 0.25, "memory_gb": 40.0}


def throughput(engine, bfloat16, float32):
    row = {"recipe": "swila-374m", "batch_size": 8, "length": 4096, "engine": engine, "planned_gb": 42.0}
    return {**WHERE, "updates": 3, "recipes": [{**row, "bare": {"bfloat16": bfloat16, "float32": float32}}]}


def test_ratios_are_by_mean_and_median_and_a_slow_engine_is_bold():
    table = throughput_table(throughput(speed(96.0, 10.0), speed(100.0, 9.8), speed(90.0, 11.0)))
    assert "| swila-374m | 96 | 25.0% | 40.0 | 100 | **0.960** · 0.980 | 90 | 1.067 · 1.100 |" in table
    table = throughput_table(throughput(speed(98.0, 10.0), speed(100.0, 9.6), speed(90.0, 11.0)))
    assert "0.980 · **0.960**" in table


def test_the_plan_beside_the_peak():
    record = throughput(speed(96.0, 10.0), speed(100.0, 9.8), speed(90.0, 11.0))
    assert "| swila-374m | 42.0 | 40.0 | +5.0% |" in plan_table(record)
    record["recipes"][0]["planned_gb"] = 38.0
    assert "| 38.0 | 40.0 | -5.0% |" in plan_table(record)


def test_small_runs():
    run = {
        "recipe": "gdn-small",
        "step": 10,
        "tokens_per_step": 200_000,
        "curves": {"train/loss": [[1, 9.0], [10, 4.0]]},
        "result": {"best": 50.0},
        "config": {"optimizer": {"lr": 0.001}},
        "sample": "The history of all",
    }
    table = small_runs_table({**WHERE, "runs": {"a": run}, "note": "A remark."})
    assert "| GDN | 10 | 2.0 M | 4.000 | 50.0 |" in table
    assert "GDN: “The history of all”" in table
    assert "A remark. A GPU" in table


FLA = {
    **WHERE,
    "preset": "gdn-374m",
    "batch_size": 8,
    "length": 2048,
    "logits": {"ours_to_float32": 0.01, "theirs_to_float32": 0.02, "ours_to_theirs": 0.03},
    "gradients": {"ours": {"all": 0.04}, "theirs": {"all": 0.05}},
    "curves": {"ours": [9.0] * 50 + [6.0] * 50, "theirs": [9.0] * 50 + [6.5] * 50},
    "start": {"theirs": [10.0, 9, 8, 7, 6, 5, 4, 3, 2.0], "ours": [10.0, 9, 8, 7, 6.5, 5, 4, 3, 2.5]},
}


def test_beside_flash_linear_attention():
    table = fla_table(FLA)
    assert "| logits, relative error to ours in float32 | 0.010 | 0.020 |" in table
    assert "| gradients, relative error to ours in float32 | 0.040 | 0.050 |" in table
    assert "| training loss, mean of updates 51 to 100 | 6.000 | 6.500 |" in table
    assert "differ by 0.2500 on average and 0.500 at most" in table


def test_the_start():
    table = start_table(FLA)
    assert "| flash-linear-attention's model, its own | 10.00 | 6.00 | 2.00 |" in table
    assert "| ours | 10.00 | 6.50 | 2.50 |" in table


@pytest.mark.parametrize(("seeds", "words", "mean"), [(1, "one seed", "4.000"), (2, "means of 2 seeds", "4.500")])
def test_initial_weights_are_means_over_seeds(seeds, words, mean):
    runs = [
        {"recipe": "gdn-tiny", "initialization": "x", "seed": seed, "tokens": 2e6, "validation": [[5, 4.0 + seed]]}
        for seed in range(seeds)
    ]
    table = initialization_table({**WHERE, "runs": runs})
    assert f"| gdn-tiny | x | {mean} |" in table
    assert words in table
