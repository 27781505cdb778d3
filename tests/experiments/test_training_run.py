"""A run hands the right data, model and objective to its training."""

from dataclasses import replace

import pytest
import torch

from swila.experiments import cdar, mqar, recall, regbench, softmax_regression
from swila.experiments.cdar.routing import shares_by_context
from swila.experiments.loop import LegalPrediction, Regression, TokenPrediction
from swila.tasks import IGNORE
from swila.training import RunDirectory

SMALL = {"train_examples": 64, "test_examples": 20, "validation_examples": 12}


def runs_of(make_runs, **given):
    return [replace(run, **SMALL) for run in make_runs("tiny", **given)]


@pytest.mark.parametrize(
    ("make_runs", "objective"),
    [
        (cdar.make_runs, TokenPrediction),
        (mqar.make_runs, TokenPrediction),
        (regbench.make_runs, LegalPrediction),
        (softmax_regression.make_runs, Regression),
    ],
    ids=["cdar", "mqar", "regbench", "softmax-regression"],
)
def test_what_a_training_is_made_of(make_runs, objective, tmp_path):
    run = runs_of(make_runs)[0]
    trainer = run.begin(RunDirectory(tmp_path, {}), "cpu", tensorboard=False)
    for split, found in (("train", trainer.train), ("test", trainer.test), ("val", trainer.validation)):
        expected = run.task.examples(len(found), split, 0)
        assert len(found) == {"train": 64, "test": 20, "val": 12}[split]
        assert torch.equal(found.inputs, expected.inputs), split
    assert type(trainer.objective) is objective
    assert trainer.config == run.training
    without = replace(run, validation_examples=0).begin(RunDirectory(tmp_path, {}), "cpu", tensorboard=False)
    assert without.validation is None


@pytest.mark.parametrize("make_runs", [cdar.make_runs, mqar.make_runs], ids=["cdar", "mqar"])
def test_every_label_is_trained(make_runs):
    run = runs_of(make_runs)[0]
    labels = run.data("train").labels != IGNORE
    assert (labels.sum(1) == run.kind.objective(run.task).labels).all()


def test_seeds_of_models_share_their_data():
    first, second = runs_of(cdar.make_runs, models=["swila"], seeds=[0, 1])
    assert (first.training.seed, second.training.seed) == (0, 1)
    for split in ("train", "test", "val"):
        assert torch.equal(first.data(split).inputs, second.data(split).inputs)
    other = replace(first, data_seed=1)
    assert not torch.equal(first.data("train").inputs, other.data("train").inputs)


def test_the_chosen_weights_are_loaded(tmp_path):
    (run,) = runs_of(softmax_regression.make_runs, models=["deltanet"], budgets=[1], seeds=[0])
    last, chosen = run.kind.model(run.model), run.kind.model(run.model)
    directory = RunDirectory(tmp_path, {})
    for best, expected in ((chosen.state_dict(), chosen), (None, last)):
        directory.save_checkpoint({"model": last.state_dict(), "best_model": best})
        loaded = run.load(tmp_path)
        assert not loaded.training
        for name, weight in loaded.state_dict().items():
            assert torch.equal(weight, expected.state_dict()[name])


def test_facts_of_a_run():
    (run,) = cdar.make_runs("paper", ["temporal-swila"], [64], [1], [1e-3], [2])
    facts = run.facts()
    assert facts["state"] == 2**12
    assert (facts["steps_per_epoch"], facts["planned_steps"]) == (1562.5, 50 * 1562)
    assert (facts["lr"], facts["seed"], facts["hidden_size"], facts["num_layers"]) == (1e-3, 2, 64, 1)
    assert (facts["num_heads"], facts["num_mixtures"]) == (1, 4)


def test_rows_of_recall():
    """The best run counts as the paper's best; the mean is that of learning rates, of each the mean of its seeds."""
    runs = [
        {"name": f"{lr}-{seed}", "model": "swila", "hidden_size": 16, "num_layers": 1, "planned_steps": 9,
         "state": 4, "parameters": 8, "lr": lr, "best": best, "best_step": step, "status": status}
        for lr, seed, best, step, status in (
            (1e-3, 0, 0.2, 3, "finished"), (1e-3, 1, 0.4, 4, "finished"), (1e-3, 2, 0.6, 5, "finished"),
            (1e-2, 0, 1.0, 6, "solved"),
        )
    ]  # fmt: skip
    (row,) = recall.summarize(runs)
    assert (row["best"], row["best_run"], row["best_step"]) == (1.0, "0.01-0", 6)
    assert row["mean"] == pytest.approx((0.4 + 1.0) / 2)
    assert (row["solved"], row["runs"], row["lrs"]) == (1, 4, [1e-3, 1e-2])
    assert row["diverged"] == []
    (row,) = recall.summarize([*runs[:2], runs[2] | {"status": "diverged"}])
    assert row["diverged"] == ["0.001-2"]


def test_the_best_of_a_budget_is_chosen_by_validation():
    common = {"state": 4, "parameters": 8, "lr": 1e-2, "seed": 0, "status": "finished", "best_step": 4}
    runs = [
        common | {"name": size, "model": model, "size": size, "best": best, "steps_per_epoch": 2.0}
        | {"validation": {"loss": loss}, "test": {"r2": best}}
        for model, size, loss, best in (
            ("swila", "H1J2", 0.3, 0.9), ("swila", "H2J1", 0.2, 0.8), ("deltanet", "H2", 0.1, 0.7)
        )
    ]  # fmt: skip
    rows = softmax_regression.summarize(runs)
    assert {row["size"]: row["best_of_budget"] for row in rows} == {"H1J2": False, "H2J1": True, "H2": False}


def test_shares_by_context():
    """The mean over the tokens of each context, counted from one; what is before the first query has none."""
    trace = torch.tensor([[0.1, 0.9, 0.3, 0.5, 1.0]])[:, :, None, None, None]
    context = torch.tensor([[1, 2, 1, -1, 2]])
    assert shares_by_context(trace, context, 2).flatten().tolist() == pytest.approx([0.2, 0.95])
    with pytest.raises(ValueError, match="context must be numbered from 1 to num_contexts = 1, got 2"):
        shares_by_context(trace, context, 1)


def test_the_cache_of_attention_grows_with_the_task():
    (run,) = cdar.make_runs("paper", ["attention"], [64], [2], [1e-3], [0])
    assert run.sizes().state == 2 * 2 * 64 * 1024
    (run,) = softmax_regression.make_runs("paper", ["attention"], seeds=[0])
    assert run.sizes().state == 2 * 32 * 512


def test_a_shorter_regression_has_a_shorter_warm_up():
    (run,) = softmax_regression.make_runs("paper", ["deltanet"], [1], seeds=[0], steps=1280)
    assert (run.training.steps, run.training.warmup_steps) == (1280, 64)
