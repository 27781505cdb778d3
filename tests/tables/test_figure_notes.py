"""The notes of figures give sizes and epochs of the runs they show."""

import json

from claims import ROOT

from swila.experiments.record import lengths, trials
from swila.experiments.regbench.figures import about as regbench_about
from swila.experiments.softmax_regression import figures as softmax_regression_figures


def test_how_long_and_on_how_much_runs_were_trained():
    run = {"planned_steps": 100, "steps_per_epoch": 10, "train_examples": 6400}
    assert lengths([run, run], "examples") == ["6,400 training examples", "10 epochs"]
    assert lengths([run, run | {"planned_steps": 384}], "examples")[1] == "10 to 38.4 epochs"
    assert lengths([run | {"planned_steps": 10}], "automata") == ["6,400 training automata", "1 epoch"]
    assert lengths([run, run | {"train_examples": 64}], "examples") == ["10 epochs"]
    assert lengths([], "examples") == lengths([{"name": "of an earlier version"}], "examples") == []
    run = {"model": "swila", "size": "H1", "lr": 0.01}
    assert trials([run, run]) == ["learning rate 0.01", "2 seeds"]
    assert trials([run, run | {"lr": 0.1}]) == ["learning rates 0.01, 0.1", "1 seed"]
    assert trials([run, run, run | {"lr": 0.1}]) == ["learning rates 0.01, 0.1", "up to 2 seeds"]
    assert trials([]) == []


def test_figures_of_regbench_carry_sizes_and_epochs():
    record = json.loads((ROOT / "results/regbench.json").read_text())
    runs = list(record["runs"].values())
    found = regbench_about(record, runs, "RegBench")
    assert found.task[0] == "automata of 4–12 states and 4–18 symbols"
    assert found.training[:3] == ["8 layers of width 256", "up to 200 epochs", "learning rate 0.00025"]
    stopped = sum(run["status"] == "stopped" for run in runs)
    assert found.training[-1].startswith(f"{stopped} of {len(runs)} runs stopped early")
    finished = regbench_about(record, [run | {"status": "finished"} for run in runs], "RegBench")
    assert finished.training == found.training[:-1]


def test_figures_of_regression_carry_sizes_and_epochs(monkeypatch, tmp_path):
    record = json.loads((ROOT / "results/softmax-regression.json").read_text())
    seen = []
    monkeypatch.setattr(softmax_regression_figures, "budget_figure", lambda *given, **_: seen.append(given[2]))
    softmax_regression_figures.draw(record, tmp_path)
    for about in seen:
        assert about.task[0] == "sequences of 512 tokens with 32 dims"
        assert about.training[:2] == ["65,536 training sequences", "10 epochs"]
        assert about.training[-1] == "configuration and learning rate chosen by validation loss"
    assert len(seen) == 2
