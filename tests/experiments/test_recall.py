"""What CDAR and MQAR share: the grid, open points that are set by name, the table, and accuracy against state size."""

from dataclasses import replace

import pytest

from swila.experiments import cdar, mqar, settings
from swila.experiments.recall import SETTINGS, summarize
from swila.experiments.recall_figures import draw
from swila.experiments.registry import MQAR as MQAR_EXPERIMENT
from swila.experiments.sweep import run_all
from swila.experiments.training_run import TrainingRun
from swila.models import SyntheticModel
from swila.tasks import CDAR, MQAR


def test_epochs_and_steps():
    (run,) = cdar.make_runs("paper", ["swila"], [64], [1], [1e-3], [0], epochs=3)
    assert run.training.steps == 3 * (100_000 // 64)
    (run,) = cdar.make_runs("paper", ["swila"], [64], [1], [1e-3], [0], steps=7, precision="float32")
    assert (run.training.steps, run.training.precision) == (7, "float32")
    with pytest.raises(ValueError, match="steps and epochs both say how long to train, got 5 and 2"):
        cdar.make_runs("tiny", steps=5, epochs=2)


def test_mqar_has_the_models_and_sizes_of_cdar():
    for preset in cdar.PRESETS:
        assert replace(mqar.PRESETS[preset], task=CDAR(), summary="") == replace(
            cdar.PRESETS[preset], task=CDAR(), summary=""
        )
    assert len(mqar.make_runs("paper")) == len(cdar.make_runs("paper"))
    paper = mqar.PRESETS["paper"].task
    assert (paper.vocab_size, paper.length, paper.num_pairs) == (8192, 1024, CDAR().num_queries)


def test_settings_as_text():
    found = settings.parse(["noise=false", "clip=null", "init_std=0.02", "conv_on=input", "warmup_steps = 5"])
    assert found == {"noise": False, "clip": None, "init_std": 0.02, "conv_on": "input", "warmup_steps": 5}
    for text in ("noise", "=3", "noise="):
        with pytest.raises(ValueError, match="set must be NAME=VALUE"):
            settings.parse([text])


def test_every_open_point_can_be_set():
    """In the run that comes of it, and in its name; its configuration survives a file."""
    values = {
        "init_std": 0.5, "temporal_bias": -1, "noise": True, "embed_dropout": 0.25, "router_projection": "swiglu:8",
        "conv_on": "input", "weight_decay": 0, "clip": None, "warmup_steps": 3, "schedule": "cosine",
    }  # fmt: skip
    assert set(values) == set(SETTINGS)
    usual = replace(cdar.PRESETS["tiny"], noise=False, temporal_bias=-2.0)
    (run,) = cdar.recall.make_runs({"tiny": usual}, "tiny", ["temporal-swila"], seeds=[0], settings=values)
    options, model, training = run.model.mixer_options, run.model, run.training
    assert (model.init_std, model.embed_dropout) == (0.5, 0.25)
    assert options["temporal_bias"] == -1.0
    assert options["router_noise"]
    assert options["temporal_noise"]
    assert options["router_projection"] == "swiglu:8"
    assert options["conv_on"] == "input"
    assert (training.weight_decay, training.clip, training.warmup_steps, training.schedule) == (0, None, 3, "cosine")
    for name in values:
        assert f"{name}=" in run.name
    assert ":" not in run.name
    assert TrainingRun.from_config(run.config()) == run
    SyntheticModel(run.model)


def test_what_is_as_usual_is_no_variant():
    (usual,) = cdar.make_runs("tiny", ["swila"], seeds=[0])
    assert cdar.make_runs("tiny", ["swila"], seeds=[0], settings={"init_std": 0.3}) == [usual]
    assert "variant" not in usual.facts()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"init": 1.0}, "set: a setting must be one of init_std, temporal_bias, .*, got 'init'"),
        ({"noise": 1}, "set: noise must be of type bool, got 1"),
        ({"temporal_bias": None}, "set: temporal_bias must be of type float, got None"),
        ({"conv_on": "values"}, "conv_on must be 'qkv' or 'input', got 'values'"),
        ({"schedule": "linear"}, "schedule must be one of constant, cosine, cosine-epochs, got 'linear'"),
    ],
)
def test_mistakes_in_settings(given, message):
    with pytest.raises(ValueError, match=message):
        SyntheticModel(cdar.make_runs("tiny", ["swila"], seeds=[0], settings=given)[0].model)


def test_variants_are_rows_of_their_own():
    run = {"model": "swila", "hidden_size": 16, "num_layers": 1, "state": 4, "parameters": 9, "best_step": 1, "lr": 1.0}
    runs = [
        run | {"name": "a", "best": 0.2, "status": "finished"},
        run | {"name": "b", "best": 1.0, "status": "solved"},
        run | {"name": "c", "best": 0.9, "status": "finished", "variant": "noise=false"},
        run | {"name": "d", "status": "running"},
    ]
    plain, other = summarize(runs)
    assert (plain["variant"], plain["best"], plain["mean"], plain["solved"], plain["runs"]) == ("", 1.0, 0.6, 1, 3)
    assert (plain["best_run"], plain["not_over"]) == ("b", {"d": "running"})
    assert (other["variant"], other["best"], other["runs"]) == ("noise=false", 0.9, 1)


def test_mqar_trains_and_is_drawn(tmp_path):
    runs = mqar.make_runs("tiny", ["temporal-swila", "deltanet"], seeds=[0], steps=4)
    runs += mqar.make_runs("tiny", ["deltanet"], layers=[2], seeds=[0], steps=4)
    runs = [replace(run, train_examples=64, test_examples=32) for run in runs]
    assert all(isinstance(run.task, MQAR) for run in runs)
    run_all(runs, tmp_path, tensorboard=False)
    record = MQAR_EXPERIMENT.record("tiny", tmp_path)
    assert "plateau" not in record
    assert [(row["model"], row["layers"]) for row in record["rows"]] == [
        ("temporal-swila", 1),
        ("deltanet", 1),
        ("deltanet", 2),
    ]
    for paths in draw(record, tmp_path, None):
        text = paths[1].read_text()
        assert "MQAR: 6 pairs, length 32" in text
        assert "1/C" not in text
