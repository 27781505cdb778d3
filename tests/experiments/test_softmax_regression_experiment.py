"""Approximating softmax attention: the paper's grid, and its claim in small."""

import json
from dataclasses import replace
from statistics import fmean

import pytest

from swila.experiments.registry import SOFTMAX_REGRESSION
from swila.experiments.softmax_regression.presets import PRESETS
from swila.experiments.softmax_regression.runs import MODELS, configurations, make_runs
from swila.experiments.sweep import run_all


def shortened(runs, steps=6):
    """The same with little data and few updates."""
    few = {"train_examples": 64, "test_examples": 16, "validation_examples": 16}
    return [
        replace(run, training=replace(run.training, steps=steps, batch_size=16, eval_every=3), **few) for run in runs
    ]


def test_the_papers_grid():
    runs = make_runs("paper")
    assert len(runs) == 3 * 27
    assert len({run.name for run in runs}) == len(runs)
    swila = {run.size for run in runs if run.label == "swila"}
    assert len(swila) == 20
    assert "H2J16" in swila
    assert "H1J32" not in swila
    assert sum(not size.endswith("J1") for size in swila) == 14
    for run in runs[:27]:
        sizes = run.sizes()
        H, J = run.model.mixer_options["num_heads"], run.model.mixer_options.get("num_mixtures", 1)
        if run.label == "attention":
            assert (H, run.model.mixer_options["qkv_bias"]) == (1, True)
            assert sizes.parameters == 4 * 32 * 32 + 3 * 32
        else:
            assert sizes.state == H * J * 32**2
            assert H * J in (1, 2, 4, 8, 16, 32)
        if J > 1:
            assert run.model.mixer_options["router_projection"] == "swiglu:256"
            assert run.model.mixer_options["balance_marginal"] == 1e-3
    assert runs[0].train_examples == 65_536
    assert (runs[0].validation_examples, runs[0].test_examples) == (2048, 2048)
    assert runs[0].training.steps == 10 * 256


def test_deltanet_has_one_learning_rate_per_head_and_swila_one_per_output():
    (deltanet,) = make_runs("paper", ["deltanet"], [4], seeds=[0])
    swila = next(run for run in make_runs("paper", ["swila"], [4], seeds=[0]) if run.size == "H2J2")
    assert deltanet.kind.model(deltanet.model).mixer.b_proj.weight.shape == (4, 32)
    model = swila.kind.model(swila.model)
    assert model.mixer.b_proj.weight.shape == (2 * 2 * 32, 32)
    assert model.mixer.key_router.down.weight.shape == (2 * 2 * 32, 256)
    assert not model.mixer.use_short_conv


def test_budgets_between_powers_of_two():
    assert configurations("swila", PRESETS["paper"], [6]) == [(6, 1), (3, 2), (2, 3), (1, 6)]
    assert configurations("deltanet", PRESETS["paper"], [6]) == [(6, 1)]
    assert [run.size for run in make_runs("small", ["swila"])] == ["H1J1", "H1J2", "H2J2", "H1J4", "H4J2", "H2J4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "huge"}, "preset must be one of tiny, small, paper, got 'huge'"),
        ({"preset": "tiny", "models": ["gpt"]}, "model must be one of swila, deltanet, attention, got 'gpt'"),
        ({"preset": "tiny", "budgets": [0]}, "budget must be at least 1, got 0"),
        ({"preset": "tiny", "precision": "fp8"}, "precision must be one of float32, tf32, bfloat16, got 'fp8'"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_runs(**arguments)


def test_every_configuration_trains_and_is_summarized(tmp_path):
    runs = shortened(make_runs("tiny", seeds=[0, 1]))
    results = run_all(runs, tmp_path, tensorboard=False)
    record = SOFTMAX_REGRESSION.record("tiny", tmp_path)
    assert [row["model"] for row in record["rows"]] == ["swila"] * 6 + ["deltanet"] * 3 + ["attention"]
    for row in record["rows"]:
        mine = [results[run.name]["best"] for run in runs if (run.label, run.size) == (row["model"], row["size"])]
        assert row["scores"] == mine
        assert row["mean"] == pytest.approx(fmean(mine))
    best = {row["state"]: row["size"] for row in record["rows"] if row["best_of_budget"]}
    assert len(best) == 3
    for state, size in best.items():
        baselines = [row for row in record["rows"] if row["model"] == "swila" and row["state"] == state]
        losses = {
            row["size"]: fmean(results[name]["validation"]["loss"] for name in row["chosen"]) for row in baselines
        }
        assert min(losses, key=losses.get) == size
    json.dumps(record)
    assert not any("curve" in run for run in record["runs"].values()), "no table or figure needs them"
    for paths in SOFTMAX_REGRESSION.draw(record, tmp_path, None):
        assert all(path.stat().st_size > 3000 for path in paths)
    assert set(MODELS) == {row["model"] for row in record["rows"]}


def test_mixtures_beat_heads_and_attention_beats_both(tmp_path):
    """The claim in miniature: with a state of 4 heads, 2 heads of 2 mixtures come closer. A third of tiny's steps."""
    runs = [
        replace(run, validation_examples=128, test_examples=128, training=replace(run.training, eval_every=260))
        for run in make_runs("tiny", budgets=[4], lrs=[1e-2], seeds=[1], steps=260)
        if run.size in ("H2J2", "H4") or run.label == "attention"
    ]
    swila, deltanet, attention = (result["best"] for result in run_all(runs, tmp_path, tensorboard=False).values())
    assert 0.5 < deltanet < swila < attention < 1
    assert swila - deltanet > 0.015
