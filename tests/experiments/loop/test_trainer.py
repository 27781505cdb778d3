"""The training loop: the same numbers however often it is interrupted, and honest about how it ended."""

import json
import os
import signal

import pytest
import torch

from swila.experiments.loop import TokenPrediction, Trainer, TrainingConfig
from swila.models import SyntheticModel, SyntheticModelConfig
from swila.tasks import CDAR
from swila.training import RunDirectory, collect_auxiliary_loss, collect_routing_diagnostics

TASK = CDAR(32, 2, 2, 24)
CONFIG = TrainingConfig(steps=13, batch_size=8, lr=1e-2, eval_every=4, stop_at=None, seed=3, schedule="cosine")
OPTIONS = {"num_heads": 1, "num_mixtures": 2, "temporal": True, "router_noise": True, "balance_marginal": 0.01}


def make_model():
    return SyntheticModel(SyntheticModelConfig(32, 8, 1, "swila", OPTIONS, embed_dropout=0.1))


def trainer(path, config=CONFIG, report=None, **more):
    train, test = TASK.examples(40, "train"), TASK.examples(20, "test")
    directory = RunDirectory(path, {"steps": config.steps})
    return Trainer(make_model, TokenPrediction(), train, test, config, directory, report=report, **more)


def numbers(path):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def weights(path):
    return torch.load(path / "checkpoint.pt", weights_only=True)["model"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    result = trainer(path, tensorboard=False).fit()
    return path, result


def test_leaves_everything_behind(whole):
    path, result = whole
    assert result["status"] == "finished"
    assert result["steps"] == 13
    assert json.loads((path / "result.json").read_text()) == result
    lines = numbers(path)
    assert [line["step"] for line in lines] == [4, 8, 12, 13]
    expected = {
        "step",
        "train/loss",
        "lr",
        "test/accuracy",
        "test/loss",
        "routing/key_utilization_entropy",
        "routing/query_dead_fraction",
    }
    assert expected <= lines[0].keys()
    assert result["metric"] == "accuracy"
    assert result["best"] == max(line["test/accuracy"] for line in lines)
    assert {"torch", "cpu", "commit"} <= json.loads((path / "environment.json").read_text()).keys()


def test_same_seed_same_numbers(whole, tmp_path):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    trainer(tmp_path / "again", tensorboard=False).fit()
    assert torch.equal(torch.get_rng_state(), before), "the caller's generator is left alone"
    assert numbers(tmp_path / "again") == numbers(whole[0])
    other = TrainingConfig(**{**CONFIG.__dict__, "seed": 4})
    trainer(tmp_path / "other", other, tensorboard=False).fit()
    assert numbers(tmp_path / "other") != numbers(whole[0])


@pytest.mark.parametrize("stops", [[1], [4], [7], [2, 3, 9, 12], [13]], ids=str)
def test_interrupted_and_resumed(whole, tmp_path, stops):
    for stop in stops:

        def interrupt(progress, stop=stop):
            if progress.step == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            trainer(tmp_path / "run", report=interrupt).fit()
        assert not (tmp_path / "run" / "result.json").exists()
    steps = []
    result = trainer(tmp_path / "run", report=lambda progress: steps.append(progress.step)).fit()
    assert steps == list(range(stops[-1] + 1, 14))
    assert numbers(tmp_path / "run") == numbers(whole[0])
    assert {k: v for k, v in result.items() if k != "seconds"} == {k: v for k, v in whole[1].items() if k != "seconds"}
    for (name, a), b in zip(weights(tmp_path / "run").items(), weights(whole[0]).values(), strict=True):
        assert torch.equal(a, b), name


def test_ctrl_c_ends_the_step_first(whole, tmp_path):
    def press(progress):
        if progress.step == 6:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "run", report=press).fit()
    assert signal.getsignal(signal.SIGINT) is before
    trainer(tmp_path / "run").fit()
    assert numbers(tmp_path / "run") == numbers(whole[0])


def test_killed_between_checkpoints(whole, tmp_path):
    """What was written after the last checkpoint is dropped, half a line included."""

    def crash(progress):
        if progress.step == 6:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        trainer(tmp_path / "run", report=crash, tensorboard=False).fit()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "train/loss": 1}\n{"step": 6, "tr')
    trainer(tmp_path / "run", tensorboard=False).fit()
    assert numbers(tmp_path / "run") == numbers(whole[0])


def test_a_crash_while_resuming_loses_nothing(whole, tmp_path, monkeypatch):
    def stop(progress):
        if progress.step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "run", report=stop, tensorboard=False).fit()
    with monkeypatch.context() as patch:
        patch.setattr("swila.training.metrics.os.replace", lambda *_: (_ for _ in ()).throw(RuntimeError("power cut")))
        with pytest.raises(RuntimeError):
            trainer(tmp_path / "run", tensorboard=False).fit()
    trainer(tmp_path / "run", tensorboard=False).fit()
    assert numbers(tmp_path / "run") == numbers(whole[0])


@pytest.mark.parametrize("change", [{"state": {"step": 4, "epoch": 1}}, {"state": None}, {"loss": ...}], ids=str)
def test_a_checkpoint_of_another_version_is_named(tmp_path, change):
    run = trainer(tmp_path / "run", tensorboard=False)
    run.advance()
    run.save()
    run.close()
    saved = run.directory.load_checkpoint() | change
    run.directory.save_checkpoint({key: value for key, value in saved.items() if value is not ...})
    with pytest.raises(ValueError, match=r"checkpoint.pt was written by another version of swila; delete it"):
        trainer(tmp_path / "run", tensorboard=False).fit()


def test_a_finished_run_is_not_run_again(whole):
    steps = []
    assert trainer(whole[0], report=steps.append).fit() == whole[1]
    assert steps == []


def test_stops_when_solved(tmp_path):
    config = TrainingConfig(steps=50, batch_size=8, eval_every=3, stop_at=-1.0)
    result = trainer(tmp_path / "run", config, tensorboard=False).fit()
    assert (result["status"], result["steps"]) == ("solved", 3)


def test_diverged_is_not_finished(tmp_path):
    def broken():
        model = make_model()
        torch.nn.init.constant_(model.norm.weight, float("inf"))
        return model

    run = trainer(tmp_path / "run", tensorboard=False)
    run.make_model = broken
    assert run.fit()["status"] == "diverged"


def test_another_score(tmp_path):
    """Any metric can be the one that counts, below zero too."""

    class Likelihood(TokenPrediction):
        score = "log_likelihood"

        def evaluate(self, model, data, batch_size):
            return {"log_likelihood": -super().evaluate(model, data, batch_size)["loss"]}

    run = trainer(tmp_path / "run", tensorboard=False)
    run.objective = Likelihood()
    result = run.fit()
    assert result["metric"] == "log_likelihood"
    assert result["best"] == max(line["test/log_likelihood"] for line in numbers(tmp_path / "run")) < 0


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    trainer(tmp_path / "run").fit()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    expected = [(line["step"], line["test/accuracy"]) for line in numbers(tmp_path / "run")]
    found = [(event.step, event.value) for event in events.Scalars("test/accuracy")]
    assert found == [(step, pytest.approx(value)) for step, value in expected]


@pytest.mark.parametrize("first", [KeyboardInterrupt, RuntimeError], ids=["saved", "no checkpoint"])
def test_tensorboard_forgets_what_came_after_the_checkpoint(tmp_path, first):
    pytest.importorskip("tensorboard")

    def stop_at(step, error):
        def stop(progress):
            if progress.step == step:
                raise error

        with pytest.raises(error):
            trainer(tmp_path / "run", report=stop).fit()

    stop_at(5, first)
    stop_at(9, RuntimeError)
    trainer(tmp_path / "run").fit()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert [event.step for event in events.Scalars("test/accuracy")] == [4, 8, 12, 13]


def test_auxiliary_loss_reaches_the_weights(tmp_path):
    """Weights differ from those of a run without load balancing, and the loss is the mean over layers."""
    model = SyntheticModel(SyntheticModelConfig(32, 8, 3, "swila", {**OPTIONS, "router_noise": False}))
    model(TASK.examples(4, "train").inputs)
    losses = [mixer.last_call.loss for mixer in model.mixers]
    torch.testing.assert_close(collect_auxiliary_loss(model), torch.stack(losses).mean())
    assert collect_auxiliary_loss(model) == 0
    found = collect_routing_diagnostics(model)
    each = torch.stack([mixer.routing_diagnostics().key_routing_entropy for mixer in model.mixers])
    torch.testing.assert_close(found.key_routing_entropy, each.mean())
    assert collect_routing_diagnostics(torch.nn.Linear(2, 2)) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"steps": 5, "lr": -1.0}, "lr must be above 0 and at most 1, got -1.0"),
        ({"steps": 5, "warmup_steps": -2}, "warmup_steps must be at least 0, got -2"),
        ({"steps": 5, "min_lr": 2.0}, "min_lr must be a fraction of lr between 0 and 1, got 2.0"),
        ({"steps": 5, "patience": 0}, "patience must be at least 1, or None, got 0"),
        ({"steps": 5, "precision": "fp8"}, "precision must be one of float32, tf32, bfloat16, got 'fp8'"),
        ({"steps": 5, "clip": -1.0}, "clip must be above 0, or None for none, got -1.0"),
        ({"steps": 5, "betas": (0.9, 1.0)}, r"betas must be two numbers of at least 0 and below 1, got \(0.9, 1.0\)"),
        ({"steps": 5, "weight_decay": -0.1}, "weight_decay must be at least 0, got -0.1"),
        ({"steps": 5, "schedule": "linear"}, "schedule must be one of constant, cosine, cosine-epochs, got 'linear'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**options)


def test_batch_larger_than_the_data(tmp_path):
    with pytest.raises(ValueError, match="batch_size must be at most the 40 training examples, got 64"):
        trainer(tmp_path / "run", TrainingConfig(steps=1))
