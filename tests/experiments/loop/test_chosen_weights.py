"""Weights chosen by a validation set, objectives, and runs on a GPU that are one captured graph."""

import json
import math
from dataclasses import replace

import pytest
import torch

from swila.experiments.loop import LegalPrediction, Regression, TokenPrediction, Trainer, TrainingConfig
from swila.experiments.loop.objective import positions_of
from swila.models import RegressionModel, RegressionModelConfig, SyntheticModel, SyntheticModelConfig
from swila.tasks import CDAR, IGNORE, Examples, RegBench, SoftmaxRegression
from swila.training import RunDirectory

TASK = SoftmaxRegression(dim=8, length=12, clusters=4)
CONFIG = TrainingConfig(steps=12, batch_size=8, lr=2e-2, weight_decay=0.0, eval_every=2, stop_at=None, seed=1)
MIXER = {"num_heads": 2, "num_mixtures": 2, "head_dim": 16, "use_short_conv": False, "balance_marginal": 1e-3}
LANGUAGE = RegBench(states=(4, 5), alphabet=(3, 4), symbols=4, strings=(3, 4), string_length=(2, 5), held_out=12)


def make_model():
    return RegressionModel(RegressionModelConfig(8, "swila", MIXER))


def trainer(path, config=CONFIG, device="cpu", **options):
    train, test, val = (TASK.examples(n, split) for n, split in ((32, "train"), (10, "test"), (11, "val")))
    directory = RunDirectory(path, {"steps": config.steps})
    options = {"tensorboard": False, "validation": val, **options}
    return Trainer(make_model, Regression(), train, test, config, directory, device, **options)


class Wild(Regression):
    """Validation losses as told, in turn."""

    def __init__(self, losses):
        super().__init__()
        self.losses = list(losses)
        self.kept = []

    def evaluate(self, model, data, batch_size):
        self.kept.append({name: x.clone() for name, x in model.state_dict().items()})
        found = super().evaluate(model, data, batch_size)
        return found | {"loss": self.losses.pop(0)} if self.losses else found


def test_the_weights_with_the_lowest_validation_loss_are_judged(tmp_path):
    run = trainer(tmp_path / "run")
    run.objective = objective = Wild([5.0, 3.0, 4.0, 3.5, 9.0, 3.2])
    result = run.fit()
    assert (result["status"], result["best_step"], result["steps"]) == ("finished", 4, 12)
    model = make_model()
    model.load_state_dict(objective.kept[1])
    judged = Regression().evaluate(model.eval(), TASK.examples(10, "test"), 10)
    assert result["test"] == pytest.approx(judged, rel=1e-5)
    assert result["best"] == result["test"]["r2"]
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert all(torch.equal(x, objective.kept[1][name]) for name, x in saved["best_model"].items())
    assert not all(torch.equal(x, saved["model"][name]) for name, x in saved["best_model"].items())
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["validation/loss"] for line in lines] == [5.0, 3.0, 4.0, 3.5, 9.0, 3.2]
    assert not any(name.startswith("test/") for line in lines for name in line), "the test set is looked at once"


def test_patience(tmp_path):
    run = trainer(tmp_path / "run", replace(CONFIG, patience=2))
    run.objective = Wild([5.0, 3.0, 4.0, 3.5, 1.0])
    result = run.fit()
    assert (result["status"], result["best_step"], result["steps"]) == ("stopped", 4, 8)


def test_diverged_with_something_to_show(tmp_path):
    run = trainer(tmp_path / "run", replace(CONFIG, lr=1e-3))
    run.objective = Wild([5.0, math.nan, math.nan, math.nan, math.nan, math.nan])
    assert run.fit()["best_step"] == 2

    def broken():
        model = make_model()
        torch.nn.init.constant_(model.mixer.o_proj.weight, math.inf)
        return model

    run = trainer(tmp_path / "nan")
    run.make_model = broken
    result = run.fit()
    assert (result["status"], result["best"], result["best_step"]) == ("diverged", None, 0)
    json.dumps(result)


@pytest.mark.parametrize("stop", [3, 6, 11])
def test_interrupted_and_resumed(tmp_path, stop):
    def interrupt(progress):
        if progress.step == stop:
            raise KeyboardInterrupt

    whole = trainer(tmp_path / "whole").fit()
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "run", report=interrupt).fit()
    again = trainer(tmp_path / "run").fit()
    assert {k: v for k, v in again.items() if k != "seconds"} == {k: v for k, v in whole.items() if k != "seconds"}


def test_chosen_weights_survive_an_interruption(tmp_path):
    def interrupt(progress):
        if progress.step == 7:
            raise KeyboardInterrupt

    run = trainer(tmp_path / "run", report=interrupt)
    run.objective = before = Wild([5.0, 3.0, 4.0])
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    run = trainer(tmp_path / "run")
    run.objective = Wild([3.5, 9.0, 3.2])
    result = run.fit()
    model = make_model()
    model.load_state_dict(before.kept[1])
    judged = Regression().evaluate(model.eval(), TASK.examples(10, "test"), 10)
    assert result["best_step"] == 4
    assert result["test"] == pytest.approx(judged, rel=1e-5)


def test_seconds_are_those_of_all_sessions(tmp_path):
    run = trainer(tmp_path / "run")
    run.advance()
    run.session.begun -= 1000
    run.save()
    run.close()
    assert 1000 < trainer(tmp_path / "run").fit()["seconds"] < 2000


def test_a_second_interruption_within_a_step_saves_nothing(tmp_path, monkeypatch):
    """What is half done is thrown away: the last whole step counts."""
    run = trainer(tmp_path / "run", save_every=0)
    update, done = type(run.session.updates)._update, []

    def interrupted(self, batch):
        update(self, batch)
        done.append(1)
        if len(done) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(type(run.session.updates), "_update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    steps = {int(state["step"]) for state in saved["optimizer"]["state"].values()}
    assert steps == {saved["state"]["step"]} == {4}


def test_routing_is_that_of_training(tmp_path):
    """An evaluation leaves the statistics of the training call where a replayed graph writes them."""
    options = {**MIXER, "track_routing": True}
    run = trainer(tmp_path / "run")
    run.make_model = lambda: RegressionModel(RegressionModelConfig(8, "swila", options))
    session = run.session
    session.advance()
    before = session.model.mixer.last_call.stats
    assert before is not None
    session._metrics(session.test)
    assert session.model.mixer.last_call.stats is before
    run.close()


def test_precision_set_by_the_newer_switches_is_left_alone(tmp_path):
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has none")
    usual = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert trainer(tmp_path / "run", replace(CONFIG, steps=2)).fit()["status"] == "finished"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = usual


def test_r2_is_pooled_over_everything():
    pairs = TASK.examples(7, "test")
    model = make_model().eval()
    with torch.no_grad():
        errors = (model(pairs.inputs) - pairs.targets).double().square().sum()
    spread = (pairs.targets.double() - pairs.targets.double().mean((0, 1))).square().sum()
    for batch_size in (1, 3, 100):
        found = Regression().evaluate(model, pairs, batch_size)
        assert found["r2"] == pytest.approx((1 - errors / spread).item(), rel=1e-6)
        assert found["loss"] == pytest.approx(errors.item() / pairs.targets.numel(), rel=1e-6)
    exact = Regression().evaluate(torch.nn.Identity(), type(pairs)(pairs.targets, pairs.targets), 4)
    assert exact == {"r2": 1.0, "loss": 0.0}


def test_legal_predictions_are_counted_over_all_scored_places():
    data = LANGUAGE.examples(9, "test")
    logits = torch.randn(*data.inputs.shape, LANGUAGE.vocab_size, generator=torch.Generator().manual_seed(0))

    class Fixed(torch.nn.Module):
        def forward(self, inputs):
            rows = [(data.inputs == row).all(1).nonzero()[0, 0] for row in inputs]
            return logits[torch.stack(rows)]

    right = distance = loss = places = 0
    for n, t in (data.labels != IGNORE).nonzero().tolist():
        legal = [v for v in range(LANGUAGE.vocab_size) if data.legal[n, t] >> v & 1]
        p = logits[n, t].softmax(-1).tolist()
        right += int(logits[n, t].argmax()) in legal
        distance += 0.5 * sum(abs(p[v] - (v in legal) / len(legal)) for v in range(LANGUAGE.vocab_size))
        loss -= math.log(p[int(data.labels[n, t])])
        places += 1
    for batch_size in (2, 9):
        found = LegalPrediction().evaluate(Fixed(), data, batch_size)
        assert found == pytest.approx({"accuracy": right / places, "loss": loss / places, "tv": distance / places})
    assert LegalPrediction().loss(Fixed(), data).item() == pytest.approx(loss / places, rel=1e-5)


def test_a_known_number_of_labels_changes_no_number():
    task = CDAR(32, 2, 2, 24)
    batch = task.examples(6, "train")
    model = SyntheticModel(SyntheticModelConfig(32, 8, 1, "deltanet", {"num_heads": 2}))
    losses = [TokenPrediction(labels).loss(model, batch) for labels in (None, task.num_queries)]
    assert torch.equal(*losses)


def test_positions_of_labels():
    where = torch.tensor([[0, 1, 0, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    places, there = positions_of(where, 3)
    assert there.tolist() == [[True] * 3, [True, False, False], [False] * 3, [True] * 3]
    assert [row[kept].tolist() for row, kept in zip(places, there, strict=True)] == [[1, 3, 4], [0], [], [0, 1, 2]]
    assert positions_of(where[:1], 2)[0].tolist() == [[1, 3]]


def test_labels_that_are_missing_do_not_count():
    """Not even where the first token has a label."""
    batch = CDAR(32, 2, 2, 24).examples(3, "train")
    labels = torch.full_like(batch.labels, IGNORE)
    labels[0, 0], labels[1, 5], labels[1, 7] = 3, 4, 5
    batch = Examples(batch.inputs, labels, batch.context)
    model = SyntheticModel(SyntheticModelConfig(32, 8, 1, "deltanet", {"num_heads": 2}))
    expected = TokenPrediction().loss(model, batch)
    torch.testing.assert_close(TokenPrediction(4).loss(model, batch), expected)


def gpu_losses(path, device, **options):
    run = trainer(path, replace(CONFIG, steps=40, eval_every=10), device, **options)
    result = run.fit()
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor([line["train/loss"] for line in lines]), result


@pytest.mark.unpoisoned
@pytest.mark.skipif("config.getoption('--device') == 'cpu'", reason="graphs are captured on a GPU")
def test_captured_updates_are_the_same_updates(device, tmp_path):
    plain, judged = gpu_losses(tmp_path / "plain", device, captured=False)
    captured, again = gpu_losses(tmp_path / "captured", device)
    torch.testing.assert_close(captured, plain, rtol=1e-3, atol=1e-4)
    assert again["best"] == pytest.approx(judged["best"], abs=1e-2)


@pytest.mark.unpoisoned
@pytest.mark.skipif("config.getoption('--device') == 'cpu'", reason="graphs are captured on a GPU")
def test_captured_runs_side_by_side_do_not_touch_each_other(device, tmp_path):
    """Dropout and noise too: each graph has random numbers of its own."""
    task = CDAR(32, 2, 2, 24)
    options = {"num_heads": 1, "num_mixtures": 2, "temporal": True, "router_noise": True}
    model = SyntheticModelConfig(32, 32, 1, "swila", options, embed_dropout=0.1)
    config = TrainingConfig(steps=48, batch_size=8, lr=1e-2, eval_every=16, stop_at=None)

    def make(name, seed):
        data = task.examples(64, "train"), task.examples(20, "test")
        directory = RunDirectory(tmp_path / name, {})
        seeded = replace(config, seed=seed)
        objective = TokenPrediction(task.num_queries)
        return Trainer(lambda: SyntheticModel(model), objective, *data, seeded, directory, device, tensorboard=False)

    alone = [make(f"alone{seed}", seed).fit() for seed in range(3)]
    together = [make(f"together{seed}", seed) for seed in range(3)]
    while not all(each.ended for each in together):
        for each in together:
            if not each.ended:
                each.advance()
    results = [each.finish() for each in together]
    for seed, (a, b) in enumerate(zip(alone, results, strict=True)):
        assert a["best"] == pytest.approx(b["best"], abs=0.05), seed
        losses = [
            [json.loads(line)["train/loss"] for line in (tmp_path / f"{how}{seed}" / "metrics.jsonl").open()]
            for how in ("alone", "together")
        ]
        assert losses[0] == pytest.approx(losses[1], rel=2e-3), seed
    first = [json.loads((tmp_path / f"alone{seed}" / "metrics.jsonl").open().readline()) for seed in range(3)]
    assert len({line["train/loss"] for line in first}) == 3
