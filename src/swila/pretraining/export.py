"""A pretraining run as a model in Hugging Face format, with tokenizer and model card."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from swila.models.language.model_card import model_card
from swila.pretraining.checkpoints import FOLDER, path_of, reading, steps_of
from swila.pretraining.identity import TOKENS
from swila.pretraining.initialization import make_on_meta
from swila.pretraining.recipe import Recipe
from swila.pretraining.run_status import KIND
from swila.pretraining.settings import from_json
from swila.training.json_files import read_json
from swila.training.run_directory import RunDirectory

NAMED = 8  # sources that a model card names
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
TRAINING = """## Training

| | |
|---|---|
| recipe | `{recipe.name}` |
| tokens | {tokens:,} ({step:,} of {recipe.schedule.steps:,} updates of {recipe.data.batch_size} × {recipe.data.length}) |
| data | {sources}{train_tokens:,} tokens |
| optimizer | AdamW, learning rate {optimizer.lr:g}, weight decay {optimizer.weight_decay:g}, betas {betas}, clipping at {optimizer.clip} |
| precision | {recipe.precision}, seed {recipe.seed} |
| training loss | {train} |
| validation | {validation} |
| hardware | {hardware} |

Losses are in nats per token. Intended use and evaluation: to be completed by the author of the checkpoint.
"""  # noqa: E501


def export(run: str | Path, out: str | Path, dtype: str = "bfloat16", step: int | None = None) -> Path:
    """Write the weights of a run as a model directory for transformers and return it.

    Args:
        run: Directory of the run.
        out: Directory to write; must not exist, or be empty.
        dtype: ``"bfloat16"`` or ``"float32"``. Decay rates stay float32.
        step: Step of the checkpoint. Default: the last.
    """
    run, out = Path(run), Path(out)
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out must be a new or empty directory, got {out}")
    directory = RunDirectory(run)
    if directory.config.get("kind") != KIND:
        raise ValueError(f"run must be a directory of swila pretrain, got {run}")
    recipe = from_json(read_json(run / "recipe.json"))
    step = _chosen(run, step)
    model = load_weights(recipe, run, step)
    tokens = read_json(run / TOKENS)
    _set_special_tokens(model, tokens)
    kept = model._keep_in_fp32_modules_strict or ()
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2] not in kept:
            parameter.data = parameter.data.to(DTYPES[dtype])
    model.config.dtype = DTYPES[dtype]
    part = out.with_name(f".{out.name}.part")  # complete or absent: what is written to the end gets its name
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (part / "README.md").write_text(model_card(model, _training(recipe, directory, tokens, step)))
    model.save_pretrained(part)
    make_tokenizer(run / "tokenizer.json", tokens).save_pretrained(part)
    os.replace(part, out)
    return out


def load_weights(recipe: Recipe, run: Path, step: int) -> Any:
    """Return the model of a run with the weights of a checkpoint, on the CPU in float32; needs no process group."""
    model = make_on_meta(recipe.model.config(recipe.data.length)).to_empty(device="cpu")
    with warnings.catch_warnings():  # that no process group exists, which is intended
        warnings.simplefilter("ignore", UserWarning)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        with reading(path_of(run / FOLDER, step)) as path:
            dcp.load({"weights": weights}, checkpoint_id=path, no_dist=True)
    model.tie_weights()
    return model.eval()


def make_tokenizer(path: Path, tokens: dict[str, Any]) -> Any:
    """Return a transformers tokenizer that starts texts as the training documents did.

    Args:
        path: A ``tokenizer.json``.
        tokens: What is known of its special tokens, as a run keeps it.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer.from_file(str(path))
    ids = {key: tokens[f"{key}_id"] for key in ("bos_token", "eos_token")}
    names = {key: None if token is None else inner.id_to_token(token) for key, token in ids.items()}
    bos = names["bos_token"]
    if tokens["add_bos"]:
        inner.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokens["bos_token_id"])]
        )
    else:
        inner.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    return PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False, **names)


def _chosen(run: Path, step: int | None) -> int:
    steps = steps_of(run / FOLDER)
    if not steps:
        raise ValueError(f"{run} has no checkpoint yet")
    if step is not None and step not in steps:
        raise ValueError(f"step must be that of a checkpoint, {', '.join(map(str, steps))}, got {step}")
    return steps[-1] if step is None else step


def _set_special_tokens(model: Any, tokens: dict[str, Any]) -> None:
    """Set the tokens that start and end a text; documents without an end token are ended by the next one's start."""
    bos, eos = tokens["bos_token_id"], tokens["eos_token_id"]
    ends = [token for token, ending in ((eos, True), (bos, tokens["add_bos"] and not tokens["add_eos"])) if ending]
    ends = [token for token in ends if token is not None]
    for config in (model.config, model.generation_config):
        config.bos_token_id = bos
        config.eos_token_id = None if not ends else ends[0] if len(ends) == 1 else ends


def _sources(sources: list[dict[str, Any]]) -> str:
    """Return the files and data sets that a run was trained on, in words; those of the validation set do not count."""
    names = []
    for source in sources:
        if source["split"] == "train":  # of a file the name alone: a path may name a user
            known = Path(source["path"]).name if "path" in source else source["dataset"]
            names.append(f"{known} {source['subset']}" if source.get("subset") else known)
    if not names:  # tokens that were not made by swila data prepare
        return ""
    several = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(f"`{name}`" for name in names[:NAMED]) + several + "; "


def _training(recipe: Recipe, directory: RunDirectory, tokens: dict[str, Any], step: int) -> str:
    """Return the part of the model card about the training: data, tokens, recipe and measured losses."""
    lines = [line for line in directory.metrics() if line["step"] <= step]
    losses = [line for line in lines if "train/loss" in line]
    held_out = [line for line in lines if "validation/loss" in line]
    train = f"{losses[-1]['train/loss']:.4f} at update {losses[-1]['step']:,}" if losses else "not logged"
    validation = "no validation set"
    if held_out:
        last = held_out[-1]
        perplexity = last["validation/perplexity"]
        validation = f"loss {last['validation/loss']:.4f}, perplexity {perplexity:.2f}, at update {last['step']:,}"
    where, result = directory.environment, directory.result
    on_gpu = result is not None and result["device"].startswith("cuda")
    return TRAINING.format(
        recipe=recipe,
        optimizer=recipe.optimizer,
        betas=" and ".join(f"{beta:g}" for beta in recipe.optimizer.betas),
        tokens=step * recipe.tokens_per_step,
        step=step,
        sources=_sources(tokens["sources"]),
        train_tokens=tokens["train_tokens"],
        train=train,
        validation=validation,
        hardware=", ".join(where["gpus"]) if on_gpu else where["cpu"],
    )
