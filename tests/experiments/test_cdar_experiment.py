"""The CDAR experiment: its grid, its sweep, and the paper's picture in small."""

import json
import os
import signal
from dataclasses import dataclass, replace

import pytest
import torch

from swila.experiments.cdar import MODELS, PRESETS, make_runs, routing, shares_by_context, summarize
from swila.experiments.cdar_figures import _mixture_of_context, _token_names, draw_accuracy, draw_routing
from swila.experiments.sweep import run_all
from swila.experiments.training_run import TrainingRun
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
            "dn-mom needs 4 contexts or more to route between, this preset has 3",
        ),
        ({"preset": "tiny", "hidden_sizes": [6]}, "hidden size must be a multiple of 4, got 6"),
        ({"preset": "tiny", "lrs": [0.0]}, "lr must be above 0 and at most 1, got 0.0"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_runs(**arguments)


def test_every_model_trains_and_is_summarized(tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "four", replace(PRESETS["tiny"], task=CDAR(32, 4, 2, 40)))
    runs = few(list(MODELS), seeds=(0, 1), preset="four")
    results = run_all(runs, tmp_path, tensorboard=False)
    rows = summarize(runs, results)
    assert [row["model"] for row in rows] == list(MODELS)
    for row in rows:
        mine = [results[run.name]["best"] for run in runs if run.label == row["model"]]
        assert row["best"] == max(mine)
        assert row["mean"] == pytest.approx(sum(mine) / 2)
        assert (row["runs"], row["solved"]) == (2, 0)
        assert results[row["best_run"]]["best"] == row["best"]
    json.dumps(rows)
    again = TrainingRun.finished_in(tmp_path)
    assert [run for run, _ in again] == sorted(runs, key=lambda run: run.name)
    assert {run.name: result for run, result in again} == results
    for paths in (draw_accuracy(runs, rows, tmp_path), draw_routing(runs, tmp_path)):
        assert [path.suffix for path in paths] == [".png", ".svg"]
        assert all(path.stat().st_size > 3000 for path in paths)


@dataclass(frozen=True)
class Odd:
    """A run that misbehaves as its name says."""

    name: str

    def config(self):
        return {"name": self.name}

    def begin(self, directory, device, tensorboard):
        if self.name == "broken":
            raise RuntimeError("out of memory")
        if self.name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return OddTraining()


class OddTraining:
    """Over before it began."""

    over = True

    def save(self):
        pass

    close = save

    def finish(self):
        return {"status": "finished", "best": 1.0, "threads": torch.get_num_threads()}


def test_a_failed_run_does_not_stop_the_others(tmp_path):
    news = []
    runs = [Odd("broken"), Odd("fine"), Odd("good")]
    for jobs in (1, 2):
        results = run_all(runs, tmp_path / str(jobs), jobs=jobs, report=news.append)
        assert results["broken"] == {"status": "failed", "error": "RuntimeError: out of memory"}
        assert results["fine"]["status"] == results["good"]["status"] == "finished"
        assert {item.name for item in news if item.result} == {"broken", "fine", "good"}


def test_a_killed_worker_costs_one_run(tmp_path):
    runs = [Odd("killed"), *(Odd(f"fine{i}") for i in range(3))]
    results = run_all(runs, tmp_path, jobs=2)
    assert results.pop("killed") == {"status": "failed", "error": "the process died (exit code -9)"}
    assert {result["status"] for result in results.values()} == {"finished"}


def test_a_report_that_raises_stops_the_workers(tmp_path):
    def report(news):
        raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="terminal"):
        run_all([Odd("a"), Odd("b")], tmp_path, jobs=2, report=report)


def test_mistakes_in_directories_cost_nothing(tmp_path):
    RunDirectory(tmp_path / "a", Odd("a").config()).finish({"status": "finished"})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("important")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        run_all([Odd("a"), Odd("b")], tmp_path, fresh=True)
    assert RunDirectory(tmp_path / "a", Odd("a").config()).result == {"status": "finished"}


def test_two_commands_in_one_directory(tmp_path):
    def report(news):
        with pytest.raises(ValueError, match="another command is at work in"):
            run_all([Odd("b")], tmp_path)

    run_all([Odd("a")], tmp_path, report=report)
    assert run_all([Odd("b")], tmp_path)["b"]["status"] == "finished"


def test_two_runs_of_one_name(tmp_path):
    with pytest.raises(ValueError, match="runs must have different names, got a twice"):
        run_all([Odd("a"), Odd("a")], tmp_path)
    assert len(make_runs("tiny", ["swila", "swila"], lrs=[0.1, 0.1], seeds=[1, 1])) == 1


def test_side_by_side_gives_the_same_numbers_as_in_turn(tmp_path):
    runs = few(["temporal-swila", "deltanet"])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    one = run_all(runs, tmp_path / "one", tensorboard=False)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    two = run_all(runs, tmp_path / "two", jobs=2, tensorboard=False)
    for run in runs:
        assert one[run.name]["best"] == two[run.name]["best"]
        a, b = (RunDirectory(tmp_path / d / run.name, run.config()).metrics() for d in ("one", "two"))
        assert [line["train/loss"] for line in a] == [line["train/loss"] for line in b]


def test_an_interrupted_sweep_goes_on(tmp_path):
    runs = few(["temporal-swila", "deltanet"], steps=9)

    def interrupt(news):
        if news.name.startswith("deltanet") and news.progress and news.progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(runs, tmp_path / "sweep", tensorboard=False, report=interrupt)
    steps = []
    results = run_all(
        runs,
        tmp_path / "sweep",
        tensorboard=False,
        report=lambda n: n.progress and steps.append((n.name, n.progress.step)),
    )
    assert steps == [(runs[1].name, step) for step in (6, 7, 8, 9)]
    whole = run_all(runs, tmp_path / "whole", tensorboard=False)
    assert {n: r["best"] for n, r in results.items()} == {n: r["best"] for n, r in whole.items()}


def test_temporal_swila_leaves_the_plateau_and_swila_does_not(tmp_path):
    """The claim in miniature, with fewer steps than the main job."""
    runs = make_runs("tiny", ["temporal-swila"], seeds=[1, 3], steps=500)
    runs += make_runs("tiny", ["swila"], seeds=[1], steps=500)
    *temporal, plain = run_all(runs, tmp_path, tensorboard=False).values()
    assert max(result["best"] for result in temporal) > 0.55  # the plateau is at 0.33
    assert 0.2 < plain["best"] < 0.45
    assert draw_routing(runs, tmp_path)
    # and it does so by giving the contexts different mixtures
    test = runs[0].data("test").take(slice(0, 8))
    best = max((0, 1), key=lambda i: temporal[i]["best"])
    trace = routing(runs[best].load(tmp_path / runs[best].name), test)
    shares = shares_by_context(trace.query, test.context, 3)
    assert (shares.amax(0) - shares.amin(0)).amax() > 0.5


def test_mixtures_are_matched_to_contexts():
    shares = torch.tensor([[0.1, 0.7, 0.2], [0.2, 0.1, 0.7], [0.8, 0.1, 0.1]])[:, None, :, None]
    assert _mixture_of_context(shares).tolist() == [[1, 2, 0]]


def test_token_names():
    task = CDAR(32, 2, 2, 24)
    names = _token_names(task.examples(1, "test"), 2, 10)
    assert sorted(names[:10]) == ["A", "B", "k1", "k1", "k2", "k2", "v", "v", "v", "v"]
    assert sorted(names[10:])[-6:] == ["A", "B", "k1?", "k1?", "k2?", "k2?"]


def test_routing_needs_a_swila_layer():
    (run,) = few(["deltanet"])
    with pytest.raises(ValueError, match="model must end with a SwiLA layer to look at, got DeltaNet"):
        routing(SyntheticModel(run.model), Examples(*([torch.ones(1, 4, dtype=torch.int32)] * 3)))


def test_no_picture_of_a_diverged_run(tmp_path):
    runs = few(["swila"])
    run_all(runs, tmp_path, tensorboard=False)
    directory = RunDirectory(tmp_path / runs[0].name, runs[0].config())
    directory.finish(directory.result | {"status": "diverged"})
    assert draw_routing(runs, tmp_path) == []
