"""What a run leaves: result, metrics, news, files and routing diagnostics."""

import gc
import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from small_runs import (
    BATCH,
    LENGTH,
    PLAIN,
    STEPS,
    TIMES,
    copy_of,
    lines_of,
    model_of,
    saved_state,
    small,
    updates_of,
    write_data,
)
from torch.special import entr

from swila.data import TokenData
from swila.pretraining import engine
from swila.pretraining.checkpoints import FOLDER, steps_of
from swila.pretraining.engine import SessionState, pretrain
from swila.pretraining.settings import change, from_json
from swila.pretraining.stability import LossAverage
from swila.pretraining.updates import Updates
from swila.pretraining.validation import Validation
from swila.training import read_status
from swila.training.json_files import read_json
from swila.training.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("quick")
SIDES = [
    f"{side}_{name}"
    for side in ("key", "query")
    for name in ("utilization_entropy", "routing_entropy", "dead_fraction")
]


def test_the_result(noisy):
    perplexities = {line["step"]: line["validation/perplexity"] for line in noisy.lines if "validation/loss" in line}
    best = min(perplexities, key=perplexities.get)
    assert noisy.result["seconds"] > 0
    assert noisy.result == {
        "status": "finished",
        "metric": "perplexity",
        "best": perplexities[best],
        "best_step": best,
        "steps": STEPS,
        "device": "cpu",
        "seconds": noisy.result["seconds"],
        "final": perplexities[STEPS],
    }
    assert read_status(noisy.run) == noisy.result
    assert not (noisy.run / "progress.json").exists()
    assert noisy.lines[-1]["train/loss"] < noisy.lines[0]["train/loss"]


def test_metrics_of_every_update(plain):
    assert [line["step"] for line in plain.lines] == list(range(1, STEPS + 1))
    for line in read_metrics(plain.run / "metrics.jsonl"):
        names = {"step", "tokens", "train/loss", "train/auxiliary_loss", "train/gradient_norm", "lr", "bad_batches"}
        if line["step"] in (4, 8):
            names |= {"validation/loss", "validation/perplexity"}
            assert line["validation/perplexity"] == math.exp(line["validation/loss"])
        assert line.keys() == names | set(TIMES)
        assert line["tokens"] == line["step"] * BATCH * LENGTH
        assert line["lr"] == PLAIN.learning_rate().at(line["step"] - 1)
        assert line["bad_batches"] == line["train/auxiliary_loss"] == 0
        assert line["tokens_per_second"] > 0


def test_losses_are_those_of_the_updates(plain, data):
    updates, average = updates_of(PLAIN, data), LossAverage()
    for line in plain.lines:
        update = updates.run(line["step"] - 1, average)
        assert (line["train/loss"], line["train/gradient_norm"]) == (update.loss, update.gradient_norm)
    weights = {f"weights/{name}": p for name, p in copy_of(updates.model.named_parameters()).items()}
    assert all(torch.equal(plain.state[name], p) for name, p in weights.items())


def test_the_last_step_has_metrics_whatever_the_intervals(data, tmp_path):
    recipe = small("logging.every=3", "validation.every=100", "checkpoints.every=100")
    pretrain(recipe, data, tmp_path / "run")
    lines = lines_of(tmp_path / "run")
    assert [line["step"] for line in lines] == [3, 6, 8]
    assert ["validation/loss" in line for line in lines] == [False, False, True]
    assert steps_of(tmp_path / "run" / FOLDER) == [8]


def test_speed_is_that_of_the_updates_since_the_last_line(data, tmp_path, monkeypatch):
    class Clock:
        now = 0.0

        @classmethod
        def perf_counter(cls):
            return cls.now

    class Timed(Updates):
        def run(self, step, *args):
            Clock.now += 2.0 if step < 3 else 4.0
            return super().run(step, *args)

    monkeypatch.setattr(engine, "time", Clock)
    monkeypatch.setattr(engine, "Updates", Timed)
    monkeypatch.setattr(Validation, "loss", lambda *_: setattr(Clock, "now", Clock.now + 100) or 1.0)
    pretrain(small("logging.every=3"), data, tmp_path / "run")
    lines = [line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if "lr" in line]
    assert [line["tokens_per_second"] for line in lines] == [32, 16, 16], "the time of validation does not count"
    assert [line["seconds"] for line in lines] == [6, 118, 126]


def test_news_of_every_update(plain, noisy):
    for done in (plain, noisy):
        assert [(news.step, news.steps, news.note) for news in done.news] == [(i, 8, None) for i in range(1, 9)]
        assert [{k: x for k, x in news.line.items() if k not in TIMES} for news in done.news] == done.lines


def test_files_of_a_run(plain, data):
    assert from_json(read_json(plain.run / "recipe.json")) == PLAIN
    assert (plain.run / "tokenizer.json").read_bytes() == (data / "tokenizer.json").read_bytes()
    tokens = read_json(plain.run / "tokens.json")
    assert (tokens["bos_token_id"], tokens["eos_token_id"], tokens["add_bos"]) == (1, 2, False)
    assert steps_of(plain.run / FOLDER) == [6, 8]
    assert gc.get_freeze_count() == 0


def test_without_a_validation_set_the_score_is_the_average_loss(tmp_path):
    data = write_data(tmp_path / "tokens", validation=0)
    result = pretrain(PLAIN, data, tmp_path / "run")
    losses = [line["train/loss"] for line in lines_of(tmp_path / "run")]
    assert result["metric"] == "loss"
    assert result["final"] == result["best"] == pytest.approx(sum(losses) / STEPS)
    assert result["best_step"] == STEPS


def test_a_validation_split_shorter_than_a_sequence_serves_packed_documents_alone(tmp_path):
    data, once = (
        write_data(tmp_path / "tokens", validation=4, longest=3),
        ("schedule.steps=1", "schedule.warmup_steps=0"),
    )
    tokens, news = TokenData(data).split("validation").tokens, []
    assert 4 < tokens <= LENGTH
    result = pretrain(small(*once), data, tmp_path / "stream", report=news.append)
    assert result["metric"] == "loss"
    note = f"no validation: the validation split has too few tokens for a sequence, {tokens}"
    assert [each.note for each in news] == [note, None]
    news.clear()
    result = pretrain(small(*once, "data.packing=documents"), data, tmp_path / "documents", report=news.append)
    assert result["metric"] == "perplexity"
    assert math.isfinite(result["final"])
    assert [each.note for each in news] == [None]
    data = write_data(tmp_path / "single", validation=4, longest=1)
    assert pretrain(small(*once, "data.packing=documents"), data, tmp_path / "single-run")["metric"] == "loss"


def test_the_recipe_in_the_configuration_is_its_identity(plain):
    config = read_json(plain.run / "config.json")
    assert config["kind"] == "pretraining"
    assert config["recipe"] == json.loads(json.dumps(PLAIN.identity()))
    assert set(asdict(PLAIN)) - set(config["recipe"]) == {
        "name",
        "summary",
        "execution",
        "checkpoints",
        "validation",
        "logging",
        "stability",
    }


def test_weights_begin_at_the_seed(data, tmp_path):
    recipe = small("optimizer.lr=1e-12", "optimizer.weight_decay=0", "schedule.steps=1", "schedule.warmup_steps=0")
    pretrain(recipe, data, tmp_path / "run")
    state = saved_state(tmp_path / "run", recipe, 1)
    for name, p in model_of(recipe).named_parameters():
        torch.testing.assert_close(state[f"weights/{name}"], p.detach(), rtol=0, atol=1e-7)


def test_routing_diagnostics_of_every_layer(data, tmp_path):
    recipe = small("schedule.steps=1", mixer="swila", temporal_bias=-1.0)
    recipe = replace(recipe, model=replace(recipe.model, initializer_range=3.0))
    pretrain(recipe, data, tmp_path / "run")
    (line,) = lines_of(tmp_path / "run")
    updates, inputs = updates_of(recipe, data), []
    for block in updates.model.model.layers:
        block.mixer.register_forward_hook(lambda module, args, out: inputs.append(args[0]))
    *_, last = updates.batches.micro_batches(updates.batches.batch(0))
    updates.model(last.tokens.input_ids)
    found = []
    for block, x in zip(updates.model.model.layers, inputs, strict=True):
        values = []
        for r in block.mixer.trace(x):  # [B, T, H, J, V]
            J, usage = r.shape[3], r.mean((0, 1))
            utilization, routing = entr(usage).sum(1).mean() / math.log(J), entr(r).sum(3).mean() / math.log(J)
            values += [utilization, routing, (usage < 0.1 / J).float().mean()]
        found.append([value.item() for value in values])
    assert found[0] != pytest.approx(found[1], rel=1e-3)
    for i, values in enumerate(found):
        assert [line[f"routing/{i:02d}/{name}"] for name in SIDES] == pytest.approx(values, rel=1e-4)
    means = [sum(pair) / 2 for pair in zip(*found, strict=True)]
    assert [line[f"routing/{name}"] for name in SIDES] == pytest.approx(means, rel=1e-4)
    assert any(line[f"routing/{name}"] > 0 for name in SIDES if "dead" in name), "some mixtures are not used"
    assert sum(key.startswith("routing/") for key in line) == 3 * len(SIDES)


@pytest.mark.parametrize("recipe", [small(mixer="deltanet"), small("logging.routing=no", mixer="swila")])
def test_no_routing_without_mixtures_or_if_not_asked_for(data, tmp_path, recipe):
    pretrain(change(recipe, ["schedule.steps=1", "schedule.warmup_steps=0"]), data, tmp_path / "run")
    assert not [key for line in lines_of(tmp_path / "run") for key in line if key.startswith("routing")]


def test_a_score_that_is_not_finite_is_never_the_best():
    state = SessionState(step=1)
    for step, score in enumerate((float("nan"), 5.0, float("nan"), 4.0, float("inf"), 6.0), start=1):
        state.step = step
        state.note_score(score)
    assert (state.best, state.best_step) == (4.0, 4)
