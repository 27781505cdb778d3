"""A run as a model directory: weights, dtype, tokenizer, special tokens and model card."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_runs import STEPS, saved_state, small
from transformers import AutoModelForCausalLM, AutoTokenizer

from swila.data import write_tokens
from swila.pretraining.checkpoints import FOLDER
from swila.pretraining.engine import pretrain
from swila.pretraining.export import export, make_tokenizer
from swila.training import RunDirectory
from text_data import WORDS, save_tokenizer, word_tokenizer

SOURCES = [
    {"path": "/home/someone/words.jsonl", "bytes": 1, "split": "train"},
    {"dataset": "owner/name", "subset": "part", "dataset_split": "train", "split": "train"},
    {"path": "held-out.jsonl", "bytes": 1, "split": "validation"},
]
RECIPE = small("checkpoints.keep_last=5", "model.vocab_size=none", mixer="swila", decay="key")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of gated SwiLA on random words."""
    folder = tmp_path_factory.mktemp("export")
    tokenizer = save_tokenizer(folder / "tokenizer.json")
    random = np.random.default_rng(0)
    documents = [random.integers(3, 3 + len(WORDS), 30) for _ in range(40)]
    write_tokens(
        folder / "tokens",
        {"train": documents[:30], "validation": documents[30:]},
        tokenizer,
        3 + len(WORDS),
        bos_token_id=1,
        eos_token_id=2,
        add_bos=True,
    )
    pretrain(RECIPE, folder / "tokens", folder / "run")
    facts = folder / "run" / "tokens.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "sources": SOURCES}))
    return folder / "run"


def test_float32_has_the_master_weights(run, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(export(run, tmp_path / "model", "float32"))
    state = saved_state(run, replace(RECIPE, model=replace(RECIPE.model, vocab_size=64)), STEPS)
    found = dict(model.named_parameters())
    assert {f"weights/{name}" for name in found} == {name for name in state if name.startswith("weights/")}
    for name, parameter in found.items():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, state[f"weights/{name}"]), name


def test_bfloat16_keeps_decay_rates(run, tmp_path):
    weights = load_file(export(run, tmp_path / "model") / "model.safetensors")
    kinds = {name.rpartition(".")[2]: weight.dtype for name, weight in weights.items()}
    assert {name for name, dtype in kinds.items() if dtype == torch.float32} == {"A_log", "dt_bias"}
    assert kinds["weight"] == torch.bfloat16


def test_an_older_step(run, tmp_path):
    steps = sorted(int(path.name.removeprefix("step-")) for path in (run / FOLDER).iterdir())
    old = AutoModelForCausalLM.from_pretrained(export(run, tmp_path / "old", "float32", steps[0]))
    new = AutoModelForCausalLM.from_pretrained(export(run, tmp_path / "new", "float32"))
    assert not torch.equal(old.lm_head.weight, new.lm_head.weight)
    assert f"({steps[0]} of {STEPS} updates" in (tmp_path / "old" / "README.md").read_text()
    with pytest.raises(ValueError, match=rf"step must be that of a checkpoint, {steps[0]}, .*, got 1$"):
        export(run, tmp_path / "none", step=1)


def test_the_tokenizer_begins_texts_as_the_documents_began(run, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(export(run, tmp_path / "model"))
    assert tokenizer("the cat").input_ids == [1, 3, 5]
    assert tokenizer.decode([3, 5]) == "the cat"
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


@pytest.mark.parametrize(("add_bos", "add_eos"), [(True, True), (False, True), (False, False)])
def test_special_tokens_by_the_data(tmp_path, add_bos, add_eos):
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "add_bos": add_bos, "add_eos": add_eos}
    made = make_tokenizer(tmp_path / "tokenizer.json", tokens)
    assert made("the cat").input_ids == ([1, 3, 5] if add_bos else [3, 5])


def test_documents_without_an_end_are_ended_by_the_next_beginning(run, tmp_path):
    config = json.loads((export(run, tmp_path / "model") / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, [2, 1])
    facts = json.loads((run / "tokens.json").read_text())
    other = tmp_path / "run"
    shutil.copytree(run, other)
    (other / "tokens.json").write_text(json.dumps({**facts, "add_eos": True}))
    config = json.loads((export(other, tmp_path / "ended") / "config.json").read_text())
    assert config["eos_token_id"] == 2


def test_the_model_card_tells_data_recipe_and_losses(run, tmp_path):
    card = (export(run, tmp_path / "model") / "README.md").read_text()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert "`words.jsonl`, `owner/name part`; 900 tokens" in card
    assert "someone" not in card  # paths name users
    assert "held-out" not in card
    assert f"| training loss | {lines[-1]['train/loss']:.4f} at update {STEPS} |" in card
    assert f"perplexity {lines[-1]['validation/perplexity']:.2f}, at update {STEPS}" in card
    assert f"| tokens | {STEPS * 64:,} ({STEPS} of {STEPS} updates of 4 × 16) |" in card
    assert "learning rate 0.01, weight decay 0.01" in card


def test_what_cannot_be_exported(run, data, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="out must be a new or empty directory"):
        export(run, tmp_path / "full")
    with pytest.raises(ValueError, match="dtype must be one of bfloat16, float32, got 'int8'"):
        export(run, tmp_path / "model", "int8")
    with pytest.raises(ValueError, match="holds no run"):
        export(tmp_path, tmp_path / "model")
    shutil.copytree(run, tmp_path / "empty", ignore=shutil.ignore_patterns("step-*"))
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        export(tmp_path / "empty", tmp_path / "model")
    shutil.copytree(run, tmp_path / "torn")
    for file in (tmp_path / "torn").rglob("*.distcp"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"checkpoint .*step-0+8 cannot be read"):
        export(tmp_path / "torn", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_an_export_that_fails_leaves_nothing_under_its_name(run, tmp_path, monkeypatch):
    monkeypatch.setattr("swila.pretraining.export.make_tokenizer", fail)
    with pytest.raises(OSError, match="no space"):
        export(run, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    monkeypatch.undo()
    assert (export(run, tmp_path / "model") / "model.safetensors").exists()


def fail(*args):
    raise OSError("no space")


def test_a_run_of_another_kind_is_refused(tmp_path):
    RunDirectory(tmp_path / "run", {"kind": "recall"}).note_start()
    with pytest.raises(ValueError, match="run must be a directory of swila pretrain"):
        export(tmp_path / "run", tmp_path / "model")
