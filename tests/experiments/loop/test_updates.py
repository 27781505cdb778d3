"""What one update adds up, against a training loop written out by hand."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from swila.experiments.loop import TokenPrediction, Trainer, TrainingConfig
from swila.experiments.loop.batches import ShuffledBatches
from swila.experiments.loop.updates import Updates
from swila.models import SyntheticModel, SyntheticModelConfig
from swila.tasks import CDAR, IGNORE
from swila.training import RunDirectory

TASK = CDAR(32, 2, 2, 24)
OPTIONS = {"num_heads": 1, "num_mixtures": 2, "temporal": True, "decay": "key", "balance_marginal": 0.3}
CONFIG = TrainingConfig(
    steps=9,
    batch_size=4,
    lr=0.05,
    weight_decay=0.2,
    betas=(0.8, 0.95),
    schedule="cosine",
    warmup_steps=3,
    warmup_from=0.01,
    min_lr=0.1,
    clip=0.7,
)


def make_model(layers=2, **more):
    torch.manual_seed(5)
    config = SyntheticModelConfig(32, 8, layers, "swila", OPTIONS | more, init_std=0.3)
    return SyntheticModel(config).double()


def batches_of(data, config):
    return ShuffledBatches(data, config.batch_size, config.steps, config.seed)


def rate(config, step):
    """The cosine schedule after a warm-up, from the definitions in the documentation."""
    if step < config.warmup_steps:
        return config.warmup_from + (config.lr - config.warmup_from) * (step + 1) / config.warmup_steps
    low, high = config.min_lr * config.lr, config.lr
    done = (step - config.warmup_steps) / (config.steps - config.warmup_steps)
    return low + (high - low) * (1 + math.cos(math.pi * done)) / 2


def loss_of(model, batch):
    """Mean cross-entropy of the labelled places, and the mean over layers of the load-balancing losses."""
    logits = model(batch.inputs)
    where = batch.labels != IGNORE
    loss = -logits.log_softmax(-1)[where].gather(1, batch.labels[where].unsqueeze(1)).mean()
    balance = [mixer.auxiliary_loss() for mixer in model.mixers]
    return loss, sum(balance) / len(balance)


def trained_by_hand(model, data, config, steps):
    """AdamW (Loshchilov and Hutter, 2019) after clipping the gradient's norm; decay rates are not decayed."""
    total, (b1, b2) = 0.0, config.betas
    first = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    second = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for step in range(steps):
        loss, balance = loss_of(model, batches_of(data, config).batch(step))
        names, weights = zip(*model.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss + balance, weights)
        norm = math.sqrt(sum(g.square().sum().item() for g in gradients))
        scale = 1.0 if config.clip is None else min(1.0, config.clip / (norm + 1e-6))
        with torch.no_grad():
            for name, weight, gradient in zip(names, weights, gradients, strict=True):
                g, lr = scale * gradient, rate(config, step)
                first[name] = b1 * first[name] + (1 - b1) * g
                second[name] = b2 * second[name] + (1 - b2) * g.square()
                if not name.endswith(("A_log", "dt_bias")):
                    weight *= 1 - lr * config.weight_decay
                mean, square = first[name] / (1 - b1 ** (step + 1)), second[name] / (1 - b2 ** (step + 1))
                weight -= lr * mean / (square.sqrt() + 1e-8)
        total += loss.item()
    return total


@pytest.mark.parametrize(
    "changes",
    [{}, {"clip": None}, {"clip": 100.0}, {"weight_decay": 0.0}, {"betas": (0.9, 0.999)}, {"warmup_steps": 0}],
    ids=str,
)
def test_an_update_is_the_one_written_out_by_hand(changes):
    config = replace(CONFIG, **changes)
    data = TASK.examples(24, "train")
    model, expected = make_model(), make_model()
    updates = Updates(model, TokenPrediction(TASK.num_queries), batches_of(data, config), config)
    updates.run(0, 2)
    updates.run(2, 5)
    total = trained_by_hand(expected, data, config, 7)
    for (name, found), wanted in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert_close(found, wanted, rtol=1e-6, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
    assert updates.loss.item() == pytest.approx(total, rel=1e-9), "the sum of the losses, without load balancing"


def test_the_hand_written_loop_depends_on_everything():
    """So that the test above compares something: each part moves the weights by more than its tolerance."""
    data = TASK.examples(24, "train")

    def weights(changes=None, **options):
        model = make_model(**options)
        trained_by_hand(model, data, replace(CONFIG, **(changes or {})), 4)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    usual = weights()
    for other in (weights({"clip": None}), weights({"weight_decay": 0.1}), weights(balance_marginal=0.1)):
        assert (other - usual).abs().max() > 1e-4


def test_weight_decay_without_gradients():
    """What no gradient reaches only shrinks, by lr times weight decay an update; decay rates stay."""

    class Nothing(nn.Module):
        no_weight_decay = ("spared",)

        def __init__(self):
            super().__init__()
            self.decayed, self.spared = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, inputs, where):
            return torch.zeros(int(where.sum()), 32) + 0 * (self.decayed.sum() + self.spared.sum())

    model = Nothing()
    config = TrainingConfig(steps=3, batch_size=4, lr=0.1, weight_decay=0.5)
    Updates(model, TokenPrediction(), batches_of(TASK.examples(8, "train"), config), config).run(0, 3)
    assert_close(model.decayed.detach(), torch.full((2,), 0.95**3))
    assert torch.equal(model.spared.detach(), torch.ones(2))


def test_defaults_are_zoologys():
    config = TrainingConfig(steps=1)
    assert (config.batch_size, config.lr, config.weight_decay, config.betas) == (64, 1e-3, 0.1, (0.9, 0.999))
    assert (config.schedule, config.warmup_steps, config.min_lr, config.clip) == ("constant", 0, 0.0, None)
    assert (config.stop_at, config.patience, config.precision, config.warmup_from) == (0.99, None, "float32", 0.0)


def test_epochs_in_steps():
    config = TrainingConfig.over_epochs(3, 100, 16, lr=0.5)
    assert (config.steps, config.batch_size, config.eval_every, config.lr) == (18, 16, 6, 0.5)


class Watched(TokenPrediction):
    """Notes the losses, and in which mode the model is judged."""

    def __init__(self):
        super().__init__()
        self.losses, self.modes, self.sets = [], [], []

    def loss(self, model, batch):
        assert model.training
        loss = super().loss(model, batch)
        self.losses.append(loss.item())
        return loss

    def evaluate(self, model, data, batch_size):
        self.modes.append(model.training)
        self.sets.append(len(data))
        return super().evaluate(model, data, batch_size)


def trainer(path, config, objective, validation=None, make=make_model):
    train, test = TASK.examples(24, "train"), TASK.examples(6, "test")
    directory = RunDirectory(path, {})
    return Trainer(make, objective, train, test, config, directory, tensorboard=False, validation=validation)


def lines_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_metrics_of_a_run(tmp_path):
    """The training loss is the mean since the last look; the learning rate is that of the last update."""
    config, objective = replace(CONFIG, eval_every=4, stop_at=None), Watched()
    trainer(tmp_path / "run", config, objective).fit()
    lines = lines_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [4, 8, 9]
    spans = [objective.losses[:4], objective.losses[4:8], objective.losses[8:]]
    assert [line["train/loss"] for line in lines] == pytest.approx([sum(span) / len(span) for span in spans])
    assert [line["lr"] for line in lines] == pytest.approx([rate(config, step) for step in (3, 7, 8)])
    assert objective.modes == [False] * 3
    assert objective.sets == [6] * 3


def test_validation_is_looked_at_on_the_way_and_the_test_set_at_the_end(tmp_path):
    config, objective = replace(CONFIG, eval_every=3, stop_at=None), Watched()
    result = trainer(tmp_path / "run", config, objective, TASK.examples(5, "val")).fit()
    assert objective.sets == [5, 5, 5, 6, 5]
    best = min(lines_of(tmp_path / "run"), key=lambda line: line["validation/loss"])
    assert result["validation"]["loss"] == pytest.approx(best["validation/loss"])
    assert result["best_step"] == best["step"]


class Scored(TokenPrediction):
    """Scores as told, in turn."""

    def __init__(self, *scores):
        super().__init__()
        self.scores = list(scores)

    def evaluate(self, model, data, batch_size):
        return {"accuracy": self.scores.pop(0), "loss": 1.0}


def test_a_run_is_solved_beyond_the_score_not_at_it(tmp_path):
    config = replace(CONFIG, eval_every=1, stop_at=0.9)
    result = trainer(tmp_path / "run", config, Scored(0.5, 0.9, 0.7, 0.91)).fit()
    assert (result["status"], result["steps"], result["best"], result["best_step"]) == ("solved", 4, 0.91, 4)
    assert result["final"] == 0.91


def test_a_run_with_validation_is_solved_by_its_score_there(tmp_path):
    config = replace(CONFIG, eval_every=1, stop_at=0.9)
    scored = Scored(0.5, 0.91, 0.3, 0.5)  # two looks, then the chosen weights on the test and the validation set
    result = trainer(tmp_path / "run", config, scored, validation=TASK.examples(5, "val")).fit()
    assert (result["status"], result["steps"], result["best"]) == ("solved", 2, 0.3)


def test_patience_is_about_validation(tmp_path):
    config = replace(CONFIG, eval_every=1, stop_at=None, steps=5, patience=1)
    result = trainer(tmp_path / "run", config, Scored(0.5, 0.4, 0.3, 0.2, 0.1)).fit()
    assert (result["status"], result["steps"]) == ("finished", 5)


def test_the_best_score_counts_and_the_first_of_equals(tmp_path):
    config = replace(CONFIG, eval_every=1, stop_at=None, steps=5)
    result = trainer(tmp_path / "run", config, Scored(0.2, 0.6, 0.6, 0.1, 0.3)).fit()
    assert (result["best"], result["best_step"], result["final"]) == (0.6, 2, 0.3)


def test_weights_and_noise_come_from_streams_of_their_own(tmp_path):
    """Noise does not repeat the numbers that the weights were drawn with, nor depend on how many there were."""
    drawn = []

    def make(count):
        def build():
            drawn.append(torch.rand(count))
            return make_model(layers=1)

        return build

    noise = []
    for name, count, seed in (("a", 8, 3), ("b", 50, 3), ("c", 8, 4)):
        run = trainer(tmp_path / name, replace(CONFIG, seed=seed), TokenPrediction(), make=make(count))
        with run.session.isolation.entered():
            noise.append(torch.rand(8))
        run.close()
    assert torch.equal(drawn[0], drawn[1][:8])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[0], noise[2])
    assert not torch.equal(noise[0], drawn[0])


def test_gradients_do_not_add_up_over_updates():
    data = TASK.examples(24, "train")
    model, config = make_model(), replace(CONFIG, clip=None)
    updates = Updates(model, TokenPrediction(), batches_of(data, config), config)
    updates.run(0, 1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    updates.run(1, 1)
    found = model.embedding.weight.grad
    again = make_model()
    again.load_state_dict(before)
    loss, balance = loss_of(again, updates.batches.batch(1))
    assert_close(found, torch.autograd.grad(loss + balance, again.embedding.weight)[0])


def test_cross_entropy_alone_is_reported():
    model, data = make_model(layers=1), TASK.examples(4, "train")
    config = replace(CONFIG, steps=1)
    updates = Updates(model, TokenPrediction(), batches_of(data, config), config)
    logits = model.eval()(data.inputs)
    where = data.labels != IGNORE
    expected = F.cross_entropy(logits[where], data.labels[where])
    model.train()
    updates.run(0, 1)
    assert updates.loss.item() == pytest.approx(expected.item())
