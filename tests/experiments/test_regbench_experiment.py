"""RegBench: the paper's models and settings, yardsticks, and training in small."""

import json
from dataclasses import replace

import pytest
import torch

from swila.experiments.regbench.presets import PRESETS
from swila.experiments.regbench.runs import MODELS, PAPER, make_runs
from swila.experiments.regbench.summary import yardsticks
from swila.experiments.registry import REGBENCH
from swila.experiments.sweep import run_all
from swila.tasks import IGNORE, legality, ngram_distribution


def shortened(runs, **training):
    few = {"train_examples": 64, "test_examples": 20, "validation_examples": 20}
    return [replace(run, training=replace(run.training, **training), **few) for run in runs]


def test_the_papers_models():
    runs = {run.label: run for run in make_runs("small")}
    assert list(runs) == list(PAPER)
    for label, run in runs.items():
        sizes = run.sizes()
        assert (run.model.hidden_size, run.model.num_layers, run.model.embed_dropout) == (256, 8, 0.1)
        assert (run.train_examples, run.validation_examples, run.test_examples) == (1000, 500, 500)
        with torch.device("meta"):
            model = run.kind.model(run.model)
        assert 5e6 < sizes.parameters < 8e6
        if label == "attention":
            assert model.mixers[0].rope_theta == 10_000
            assert model.mixers[0].o_proj.bias is not None
        else:
            assert model.state_size() == 8 * 16_384
            assert model.mixers[0].q_conv1d.width == 4
            assert (model.mixers[0].head_k_dim, model.mixers[0].head_v_dim) == (64, 64)
            assert model.mixers[0].g_proj is None
    assert runs["swila"].model.mixer_options["balance_marginal"] == 0.005
    assert runs["temporal-swila"].model.mixer_options["temporal"]


def test_output_projections_start_smaller():
    (run,) = make_runs("small", ["deltanet"])
    model = run.kind.model(replace(run.model, hidden_size=64))
    block = model.blocks[0]
    assert block.mixer.q_proj.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert block.mixer.o_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
    assert block.mlp.fc2.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
    assert block.mlp.activation.approximate == "tanh"


def test_the_papers_training():
    runs = make_runs("paper")
    assert len(runs) == 5 * 6
    config = next(run for run in runs if run.train_examples == 40_000).training
    assert config.steps == 200 * 40_000 // 32
    assert config.warmup_steps == config.steps // 10
    assert config.learning_rate(1).at(config.warmup_steps) == 2.5e-4
    assert config.learning_rate(1).at(0) == pytest.approx(1e-6, abs=1e-7)
    assert config.learning_rate(1).at(config.steps) == pytest.approx(2.5e-5)
    assert (config.weight_decay, config.batch_size, config.stop_at) == (0.1, 32, None)
    (patient,) = make_runs("paper", ["swila"], [1000], patience=10)
    assert 10 <= patient.training.patience * patient.training.eval_every * 32 / 1000 < 12
    (short,) = make_runs("tiny", ["swila"], [64], epochs=2, patience=1)
    assert short.training.patience * short.training.eval_every * 32 / 64 == 1
    assert patient.training.steps == 6250


def test_validation_and_test_are_the_same_for_all_training_sets():
    small, large = make_runs("tiny", ["swila"], [64, 128])
    for split in ("val", "test"):
        assert torch.equal(small.data(split).inputs, large.data(split).inputs)
    width = small.data("train").inputs.shape[1]
    assert torch.equal(small.data("train").inputs, large.data("train").inputs[:64, :width])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preset": "huge"}, "preset must be one of tiny, small, paper, got 'huge'"),
        ({"preset": "tiny", "models": ["gpt"]}, "model must be one of temporal-swila, swila, dn-mom, deltanet, "),
        ({"preset": "tiny", "automata": [8]}, "automata must be at least a batch of 32, got 8"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_runs(**arguments)


def test_yardsticks_of_the_tiny_task():
    found = yardsticks(PRESETS["tiny"])
    assert list(found) == ["1-gram", "2-gram", "3-gram", "4-gram"]
    # 0.595, 0.83 and 0.87 were measured elsewhere, on other draws
    assert [found[name]["accuracy"] for name in found][:3] == pytest.approx([0.6, 0.83, 0.87], abs=0.03)
    assert found["1-gram"]["tv"] > found["3-gram"]["tv"]


def test_yardsticks_are_of_the_test_problems():
    task = replace(PRESETS["tiny"].task, held_out=10)
    test = task.examples(10, "test")
    law = ngram_distribution(test.inputs, 2, task.vocab_size, task.separator)
    scored = test.labels != IGNORE
    right = sum(legality(law[scored].argmax(-1), test.legal[scored]).tolist()) / scored.sum().item()
    found = yardsticks(replace(PRESETS["tiny"], task=task, held_out=10))
    assert found["2-gram"]["accuracy"] == pytest.approx(right)


def test_every_model_trains_and_is_summarized(tmp_path):
    runs = shortened(make_runs("tiny", list(MODELS)), steps=4, eval_every=2)
    results = run_all(runs, tmp_path, tensorboard=False)
    record = REGBENCH.record("tiny", tmp_path)
    assert [row["model"] for row in record["rows"]] == list(MODELS)
    for run, row in zip(runs, record["rows"], strict=True):
        assert row["scores"] == [results[run.name]["best"]]
        assert row["test"].keys() == {"accuracy", "loss", "tv"}
        assert row["train_examples"] == 64
    json.dumps(record)
    for paths in REGBENCH.draw(record, tmp_path, None):
        assert all(path.stat().st_size > 3000 for path in paths)


def test_a_model_of_ones_own(tmp_path):
    """Made from a run of the preset, it stands beside the others under its own name."""
    (run,) = shortened(make_runs("tiny", ["deltanet"]), steps=2, eval_every=2)
    mine = replace(run, label="mine", model=replace(run.model, num_layers=1))
    record = REGBENCH.run([run, mine], tmp_path / "runs", "tiny", tensorboard=False)
    assert [row["model"] for row in record["rows"]] == ["deltanet", "mine"]
    assert record == json.loads((tmp_path / "runs" / "results.json").read_text())
    assert REGBENCH.draw(record, tmp_path, None)
    with pytest.raises(ValueError, match="holds another experiment"):
        REGBENCH.run([run], tmp_path / "runs", "small")


def test_a_language_is_learnt_in_context(tmp_path):
    """Far beyond the 1-gram, which is all a model can say that does not look at what came before; a third of tiny."""
    (run,) = make_runs("tiny", ["swila"], epochs=6)
    run = replace(run, training=replace(run.training, eval_every=run.training.steps))
    (result,) = run_all([run], tmp_path, tensorboard=False).values()
    one_gram = yardsticks(PRESETS["tiny"])["1-gram"]
    assert result["best"] > one_gram["accuracy"] + 0.05
    assert result["test"]["tv"] < one_gram["tv"]
