"""What CDAR and MQAR share: the grid, open points that are set by name, the table, and accuracy against state size."""

from dataclasses import replace

import pytest
from tools.tables.recall import epochs_table, rates_table, recall_table
from tools.tables.recall_claims import recall_claims

from swila.environment import environment
from swila.experiments import cdar, mqar, recall, settings
from swila.experiments.cdar.figures import draw
from swila.experiments.cdar.runs import KIND
from swila.experiments.recall.figures import _lines
from swila.experiments.recall.presets import SETTINGS
from swila.experiments.recall.summary import summarize
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


def test_fox_has_the_heads_and_biases_of_attention():
    fox, attention = (cdar.make_runs("small", [model], seeds=[0])[0].model for model in ("fox", "attention"))
    options = attention.mixer_options.copy()
    assert options.pop("out_bias"), "which FoX has not"
    assert fox.mixer_options == options == {"num_heads": 4, "qkv_bias": True, "use_short_conv": True, "conv_size": 2}


def test_models_with_the_delta_rule_differ_in_their_decay_alone():
    runs = cdar.make_runs("small", ["deltanet", "gated-deltanet", "kda"], [32], lrs=[1e-3])
    conv = {"use_short_conv": True, "conv_size": 2}
    for run in runs:
        assert run.model.mixer_options == {"num_heads": 4, "head_dim": 16, "use_output_gate": False, **conv}


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
    (run,) = recall.make_runs(KIND, {"tiny": usual}, "tiny", ["temporal-swila"], seeds=[0], settings=values)
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
        ({"router_projection": "a/b"}, "router_projection must be 'linear'"),
        ({"embed_dropout": 3}, "embed_dropout must be at least 0 and below 1, got 3.0"),
        ({"init_std": -1}, "init_std must be a finite number of at least 0, got -1.0"),
        ({"init_std": float("nan")}, "set: init_std must be a finite number, got nan"),
    ],
)
def test_mistakes_are_told_before_anything_is_run(given, message):
    with pytest.raises(ValueError, match=message):
        cdar.make_runs("tiny", ["swila"], seeds=[0], settings=given)


def test_sizes_no_model_can_have():
    with pytest.raises(ValueError, match="head_dim must be even for rotary positions, got 9"):
        cdar.make_runs("small", ["attention"], [36])


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path, caplog):
    runs = [
        replace(run, train_examples=64, test_examples=8)
        for run in mqar.make_runs("tiny", ["swila"], seeds=[0, 1], steps=1)
    ]
    run_all(runs, tmp_path, tensorboard=False)
    config = tmp_path / runs[0].name / "config.json"
    config.write_text(config.read_text().replace('"head_dim": 8', '"head_dim": 8, "conv_on": "nowhere"'))
    record = MQAR_EXPERIMENT.record("tiny", tmp_path)
    assert list(record["runs"]) == [runs[1].name]
    assert "conv_on must be 'qkv' or 'input'" in caplog.text


def test_directories_of_earlier_versions_go_on():
    """What is new in a configuration is not written where it is as it always was."""
    for run in (*cdar.make_runs("tiny"), *cdar.make_runs("paper")):
        config = run.config()
        assert "variant" not in config
        assert "conv_on" not in config["model"]["mixer_options"]
        assert TrainingRun.from_config(config) == run


def test_variants_are_rows_of_their_own():
    run = {"model": "swila", "hidden_size": 16, "num_layers": 1, "state": 4, "parameters": 9, "best_step": 1, "lr": 1.0}
    run["planned_steps"] = 10
    runs = [
        run | {"name": "a", "best": 0.2, "status": "finished"},
        run | {"name": "b", "best": 1.0, "status": "solved"},
        run | {"name": "c", "best": 0.9, "status": "finished", "variant": "noise=false"},
        run | {"name": "d", "status": "running"},
    ]
    plain, other = summarize(runs)
    assert (plain["variant"], plain["best"], plain["mean"], plain["solved"], plain["runs"]) == ("", 1.0, 0.6, 1, 3)
    assert (plain["best_run"], plain["unfinished"]) == ("b", {"d": "running"})
    assert (other["variant"], other["best"], other["runs"]) == ("noise=false", 0.9, 1)


def test_runs_of_different_lengths_are_rows_of_their_own():
    run = {"model": "swila", "hidden_size": 16, "num_layers": 1, "state": 4, "parameters": 9, "best_step": 1}
    run |= {"status": "finished", "curve": []}
    runs = [
        run | {"name": "a", "lr": 1e-3, "best": 0.8, "planned_steps": 10},
        run | {"name": "b", "lr": 1e-3, "best": 0.6, "planned_steps": 10},
        run | {"name": "c", "lr": 1e-2, "best": 0.1, "planned_steps": 10},
        run | {"name": "d", "lr": 1e-2, "best": 0.9, "planned_steps": 20},
    ]
    short, long = summarize(runs)
    assert short["mean"] == pytest.approx(0.4), "of learning rates: the one with two seeds counts once"
    assert (short["length"], short["lrs"], short["names"]) == ("10", [1e-3, 1e-2], ["a", "b", "c"])
    assert (long["length"], long["best"]) == ("20", 0.9)
    assert [row["length"] for row in summarize(runs[:3])] == [""]


def made_up(*rows):
    """A record of runs with one learning rate each: (model, width, layers, best, variant)."""
    runs = {}
    for model, width, layers, best, variant in rows:
        name = f"{model}-{width}-{layers}-{variant}"
        runs[name] = {
            "name": name, "model": model, "size": f"d{width}-l{layers}",
            "hidden_size": width, "num_layers": layers, "state": width**2 * layers,
            "parameters": 9, "lr": 1e-3, "seed": 0, "train_examples": 640, "planned_steps": 20, "steps_per_epoch": 10,
            "curve": [[10, 0.1]],
            "status": "running" if best is None else "finished",
            **({} if best is None else {"best": best, "best_step": 10}), **({"variant": variant} if variant else {}),
        }  # fmt: skip
    task = {"vocab_size": 32, "num_contexts": 4, "num_keys": 2, "length": 64}
    return {"task": task, "plateau": 0.25, "runs": runs, "rows": summarize(list(runs.values()))}


def test_a_figure_of_state_sizes_needs_some(tmp_path):
    for record in (
        made_up(("swila", 16, 1, 0.2, ""), ("attention", 16, 1, 0.2, "")),  # two sizes, but of two models
        made_up(("swila", 16, 1, 0.2, ""), ("swila", 32, 1, None, "")),
        made_up(("swila", 16, 1, 0.2, "noise=false"), ("swila", 32, 1, 0.3, "noise=false")),
    ):
        assert [paths[0].name for paths in draw(record, tmp_path)] == ["accuracy.png"]


def test_figures_carry_size_epochs_and_runs(tmp_path):
    grid = [("temporal-swila", 16, 1, 0.9, ""), ("temporal-swila", 32, 1, 0.95, ""), ("deltanet", 16, 1, 0.2, "")]
    record = made_up(*grid)
    again = record["runs"]["temporal-swila-16-1-"] | {"name": "again", "seed": 1}
    unfinished = {key: value for key, value in again.items() if not key.startswith("best")} | {"name": "unfinished"}
    runs = record["runs"] | {"again": again, "unfinished": unfinished}
    record |= {"runs": runs, "rows": summarize(list(runs.values()))}
    sizes, curves = (" ".join(paths[1].read_text().split()) for paths in draw(record, tmp_path))
    for text in (sizes, curves):
        sizes_of_task = "4 contexts of 2 keys", "length 64", "vocabulary of 32 tokens"
        for note in (*sizes_of_task, "640 training examples", "2 epochs", "0.001; up to 3 seeds"):
            assert note in text
        assert "explored on" in text
    assert "Temporal SwiLA (2, 1), DeltaNet (1)" in sizes.replace("</text>", "")
    assert "Temporal SwiLA  0.10 (×3)".replace("  ", " ") in curves.replace("  ", " ")
    assert "1 of 5 runs are unfinished" in curves
    alone = made_up(("temporal-swila", 16, 1, 0.9, ""))
    assert "explored" not in draw(alone, tmp_path)[0][1].read_text(), "nothing to compare it with"


def test_of_runs_of_several_lengths_the_longest_are_drawn():
    record = made_up(("swila", 16, 1, 0.2, ""), ("swila", 32, 1, 0.3, ""))
    longer = [run | {"name": "longer", "planned_steps": 99, "best": 0.9} for run in record["runs"].values()][1]
    runs = record["runs"] | {"longer": longer}
    (line,) = _lines(record | {"runs": runs, "rows": summarize(list(runs.values()))})
    assert [point.scores for point in line.points] == [[0.2], [0.9]]


def test_models_of_ones_own_are_drawn_and_listed(tmp_path):
    record = made_up(("mine", 16, 1, 0.2, ""), ("mine", 32, 1, 0.9, ""), ("swila", 32, 1, 0.3, ""))
    paths = draw(record, tmp_path)[0]
    assert "mine" in paths[1].read_text()
    record |= {"device": "cpu", "environment": environment()}
    for run in record["runs"].values():
        run["seconds"] = 1.0
    assert [line.split(" | ")[0] for line in recall_table(record).splitlines()[2:4]] == ["| SwiLA", "| mine"]
    assert "not run" in recall_claims(record)


def test_learning_rates_and_settings_are_told_apart():
    record = made_up(("swila", 32, 1, 0.2, ""), ("deltanet", 32, 1, 0.5, ""), ("swila", 32, 1, 0.9, "noise=false"))
    first = next(iter(record["runs"].values()))
    for seed, lr, best in ((1, 1e-3, 0.4), (0, 1e-2, 0.1)):
        record["runs"][f"more {seed} {lr}"] = first | {"name": f"more {seed} {lr}", "lr": lr, "best": best}
    record |= {"rows": summarize(list(record["runs"].values())), "device": "cpu", "environment": environment()}
    (line,) = rates_table(record).splitlines()[2:]
    assert line == "| SwiLA | d 32, state $2^{10}$ | 0.300 (0.200–0.400; ×2) | 0.100 (×1) |"
    record["runs"] = {name: run for name, run in record["runs"].items() if run["model"] == "swila"}
    lines = [line.strip("| ").split(" | ") for line in epochs_table(record).splitlines()]
    assert lines[0] == ["SwiLA", "learning rate", "after epoch 1"]
    assert [line[0] for line in lines[2:6]] == ["preset"] * 3 + ["`noise=false`"]


def test_longer_runs_are_told_beside_the_claims():
    record = made_up(("temporal-swila", 64, 1, 0.97, ""), ("deltanet", 64, 1, 0.2, ""))
    longer = made_up(("temporal-swila", 64, 1, 0.99, ""), ("attention", 32, 2, None, ""))
    for run in longer["runs"].values():
        run |= {"planned_steps": 500, "seconds": 7.0}
    first, _, _, fourth = recall_claims(record, longer).splitlines()[2:6]
    assert "with 50 epochs (d 64, learning rate 0.001) 0.990 in 7 s" in first
    assert "with 50 epochs (d 32, 2 layers, learning rate 0.001) 0.100 after 1 epochs (unfinished)" in fourth
    assert "with 50" not in recall_claims(record)


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
    for paths in MQAR_EXPERIMENT.draw(record, tmp_path, None):
        text = paths[1].read_text()
        assert "MQAR: 6 pairs, length 32" in text
        assert "1/C" not in text
