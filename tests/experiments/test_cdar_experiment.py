"""The CDAR experiment: its grid, its sweep, and the paper's picture in small."""

import json
from dataclasses import replace

import pytest
import torch

from swila.experiments.cdar import figures as cdar_figures
from swila.experiments.cdar.figures import _token_names, draw, draw_routing
from swila.experiments.cdar.presets import PRESETS
from swila.experiments.cdar.routing import mixture_of_context, routing, shares_by_context
from swila.experiments.cdar.runs import make_runs
from swila.experiments.experiment import runs_in
from swila.experiments.recall.runs import MODELS
from swila.experiments.registry import CDAR as CDAR_EXPERIMENT
from swila.experiments.sweep import run_all
from swila.models import SyntheticModel
from swila.tasks import CDAR, Examples
from swila.training import RunDirectory


def few(models=None, steps=6, seeds=(0,), preset="tiny", **more):
    """Runs with few steps and little data."""
    runs = make_runs(preset, models=models, seeds=seeds, steps=steps, **more)
    return [
        replace(run, train_examples=128, test_examples=32, training=replace(run.training, eval_every=3)) for run in runs
    ]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_recurrent_model_has_the_same_state(preset):
    p = PRESETS[preset]
    for hidden_size in p.hidden_sizes:
        expected = p.task.num_contexts * (hidden_size // 2) ** 2
        models = [model for model in MODELS if model != "dn-mom" or p.task.num_contexts >= 4]
        runs = make_runs(preset, models, [hidden_size], [1], [1e-3], [0])
        for run in runs:
            model = SyntheticModel(run.model)
            assert model.mixers[0].use_short_conv
            assert model.mixers[0].q_conv1d.width == 2
            if run.label not in ("attention", "fox"):
                assert model.state_size() == expected, run.label


def test_the_papers_grid():
    runs = make_runs("paper")
    assert len(runs) == 4 * 3 * (4 * 4 * 2 + 3)  # four models with 4 widths and 1 or 2 layers, Temporal SwiLA with 3
    assert len({run.name for run in runs}) == len(runs)
    (claimed,) = make_runs("paper", ["temporal-swila"], [64], [1], [1e-3], [0])
    assert SyntheticModel(claimed.model).state_size() == 2**12
    assert claimed.training.steps == 50 * (100_000 // 64)
    assert claimed.model.mixer_options["router_noise"]
    assert claimed.model.mixer_options["temporal_noise"]
    assert sorted({run.training.lr for run in runs}) == pytest.approx([3.16e-4, 1e-3, 3.16e-3, 1e-2], rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "huge"}, "preset must be one of tiny, small, paper, got 'huge'"),
        (
            {"preset": "tiny", "models": ["gpt"]},
            "model must be one of temporal-swila, swila, deltanet, gated-deltanet",
        ),
        (
            {"preset": "tiny", "models": ["dn-mom"]},
            "dn-mom needs 4 memories or more to route between, this preset has 3",
        ),
        ({"preset": "tiny", "hidden_sizes": [6]}, "hidden size must be a multiple of 4, got 6"),
        ({"preset": "tiny", "lrs": [0.0]}, "lr must be above 0 and at most 1, got 0.0"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_runs(**arguments)


def test_every_model_trains_and_is_summarized(tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "four", replace(PRESETS["tiny"], task=CDAR(32, 4, 2, 40), memories=4))
    runs = few(list(MODELS), seeds=(0, 1), preset="four")
    results = run_all(runs, tmp_path, tensorboard=False)
    record = CDAR_EXPERIMENT.record("tiny", tmp_path)
    rows = record["rows"]
    assert [row["model"] for row in rows] == list(MODELS)
    for row in rows:
        mine = [results[run.name]["best"] for run in runs if run.label == row["model"]]
        assert row["best"] == max(mine)
        assert row["mean"] == pytest.approx(sum(mine) / 2)
        assert (row["runs"], row["solved"]) == (2, 0)
        assert results[row["best_run"]]["best"] == row["best"]
    json.dumps(rows)
    assert sorted(runs_in(tmp_path), key=lambda run: run.name) == sorted(runs, key=lambda run: run.name)
    assert {name: run["best"] for name, run in record["runs"].items()} == {n: r["best"] for n, r in results.items()}
    for paths in draw(record, tmp_path, tmp_path):
        assert [path.suffix for path in paths] == [".png", ".svg"]
        assert all(path.stat().st_size > 3000 for path in paths)


def test_temporal_swila_leaves_the_plateau_and_swila_does_not(tmp_path):
    """The claim in miniature, with fewer steps than the main job."""
    runs = make_runs("tiny", ["temporal-swila"], seeds=[1, 3], steps=500)
    runs += make_runs("tiny", ["swila"], seeds=[1], steps=500)
    *temporal, plain = run_all(runs, tmp_path, tensorboard=False).values()
    assert max(result["best"] for result in temporal) > 0.55  # the plateau is at 0.33
    assert 0.2 < plain["best"] < 0.45
    assert draw_routing(runs, tmp_path, tmp_path)
    # and it does so by giving the contexts different mixtures
    test = runs[0].data("test").take(slice(0, 8))
    best = max((0, 1), key=lambda i: temporal[i]["best"])
    trace = routing(runs[best].load(tmp_path / runs[best].name), test)
    shares = shares_by_context(trace.query, test.context, 3)
    assert (shares.amax(0) - shares.amin(0)).amax() > 0.5


def test_mixtures_are_matched_to_contexts():
    shares = torch.tensor([[0.1, 0.7, 0.2], [0.2, 0.1, 0.7], [0.8, 0.1, 0.1]])[:, None, :, None]
    assert mixture_of_context(shares).tolist() == [[1, 2, 0]]


def test_token_names():
    task = CDAR(32, 2, 2, 24)
    names = _token_names(task.examples(1, "test"), 2, 10)
    assert sorted(names[:10]) == ["A", "B", "k1", "k1", "k2", "k2", "v", "v", "v", "v"]
    assert sorted(names[10:])[-6:] == ["A", "B", "k1?", "k1?", "k2?", "k2?"]


def test_routing_is_that_of_the_last_layer():
    (run,) = few(["swila"], layers=[2])
    model, examples = SyntheticModel(run.model).eval(), run.data("test").take(slice(2))
    seen = []
    model.mixers[1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    found = routing(model, examples)
    torch.testing.assert_close(found.key, model.mixers[1].trace(seen[0]).key)


def test_models_are_compared_where_they_differ_most(monkeypatch, tmp_path):
    final = {
        "temporal-swila-d16-l1-lr0.007-seed0": 0.9, "swila-d16-l1-lr0.007-seed0": 0.8,
        "temporal-swila-d32-l1-lr0.007-seed0": 0.5, "swila-d32-l1-lr0.007-seed0": 0.2,
        "temporal-swila-d32-l1-lr0.007-seed1": 0.7, "swila-d32-l1-lr0.007-seed1": 0.1,
    }  # fmt: skip
    monkeypatch.setattr(cdar_figures, "_final", lambda run, directory: final.get(run.name))
    runs = few(["swila", "temporal-swila"], seeds=(0, 1), hidden_sizes=[16, 32])
    found = cdar_figures._to_compare(runs, tmp_path)
    assert [(run.label, run.size, accuracy) for run, accuracy in found] == [
        ("temporal-swila", "d32-l1", 0.7),
        ("swila", "d32-l1", 0.2),
    ]


def test_routing_needs_a_swila_layer():
    (run,) = few(["deltanet"])
    with pytest.raises(ValueError, match="model must end with a SwiLA layer to look at, got DeltaNet"):
        routing(SyntheticModel(run.model), Examples(*([torch.ones(1, 4, dtype=torch.int32)] * 3)))


def test_a_killed_run_is_as_far_as_its_last_evaluation(tmp_path):
    """Evaluations are written down at once, progress every few seconds: the record is of the later one."""
    (run,) = few(["deltanet"])
    run_all([run], tmp_path, tensorboard=False)
    own = RunDirectory(tmp_path / run.name)
    own.note_start()
    (own.path / "result.json").unlink()
    lines = own.metrics()
    for noted, step, score in (
        ({"step": 5, "score": lines[0]["test/accuracy"]}, 6, lines[1]["test/accuracy"]),
        ({"step": 8, "score": 0.75}, 8, 0.75),  # noted after the last evaluation
    ):
        (own.path / "progress.json").write_text(json.dumps({"steps": 9, **noted}))
        found = CDAR_EXPERIMENT.record("tiny", tmp_path)["runs"][run.name]
        assert found["status"] == "interrupted"
        assert (found["step"], found["score"]) == (step, score)
        assert found["curve"] == [[line["step"], line["test/accuracy"]] for line in lines]


def test_a_checkpoint_that_cannot_be_read_costs_its_picture_alone(tmp_path, caplog):
    runs = few(["temporal-swila", "swila"])
    run_all(runs, tmp_path, tensorboard=False)
    (tmp_path / runs[1].name / "checkpoint.pt").write_bytes(b"half a checkpoint")
    record = CDAR_EXPERIMENT.record("tiny", tmp_path)
    assert [row["model"] for row in record["rows"]] == ["temporal-swila", "swila"]
    assert len(draw(record, tmp_path, tmp_path)[-1]) == 2
    assert f"{runs[1].name} is left out of the picture of the routing: " in caplog.text
    assert "checkpoint.pt cannot be read; the run has ended and keeps its result" in caplog.text
    (tmp_path / runs[0].name / "checkpoint.pt").write_bytes(b"")
    assert draw_routing(runs, tmp_path, tmp_path) == []


def test_no_picture_of_a_diverged_run(tmp_path):
    runs = few(["swila"])
    run_all(runs, tmp_path, tensorboard=False)
    directory = RunDirectory(tmp_path / runs[0].name, runs[0].config())
    directory.finish(directory.result | {"status": "diverged"})
    assert draw_routing(runs, tmp_path, tmp_path) == []


def test_no_picture_of_other_contexts_in_every_sequence(tmp_path, caplog):
    """With a pool of contexts no mixture belongs to one of them."""
    task = CDAR(vocab_size=64, num_contexts=3, num_keys=2, length=32, context_pool=9)
    runs = [
        replace(run, task=task, model=replace(run.model, vocab_size=64), train_examples=64, test_examples=20)
        for run in make_runs("tiny", ["swila"], seeds=[0], steps=1)
    ]
    run_all(runs, tmp_path, tensorboard=False)
    assert draw_routing(runs, tmp_path, tmp_path) == []
    assert "needs the same contexts in all sequences, at most 8, got 3 of 9" in caplog.text
