"""What a run trains on what: the configuration that identifies its directory, and checks before the first step."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from swila.data import Manifest, TokenData
from swila.pretraining.recipe import Recipe
from swila.pretraining.run_status import KIND
from swila.training.json_files import write_json

TOKENS = "tokens.json"


def resolve(recipe: Recipe, manifest: Manifest) -> Recipe:
    """Return the recipe with the vocabulary of the data, if it has none of its own; ValueError if it is too small."""
    size = recipe.model.vocab_size
    if size is None:
        return replace(recipe, model=replace(recipe.model, vocab_size=-(-manifest.vocab_size // 64) * 64))
    if size < manifest.vocab_size:
        raise ValueError(
            f"model.vocab_size must be at least {manifest.vocab_size}, the size of the data's vocabulary, got {size}; "
            f"--set model.vocab_size={manifest.vocab_size} changes it"
        )
    return recipe


def configuration(recipe: Recipe, data: TokenData) -> dict[str, Any]:
    """Return everything that identifies a run, as JSON."""
    return {
        "kind": KIND,
        "name": recipe.name,
        "recipe": recipe.identity(),
        "tokens": {
            "tokenizer_sha256": data.manifest.tokenizer_sha256,
            "vocab_size": data.manifest.vocab_size,
            "fingerprint": data.fingerprint,
        },
    }


def keep_tokenizer(data: TokenData, directory: Path) -> None:
    """Copy the tokenizer and what is known of its special tokens into a run, for ``swila export``."""
    manifest = data.manifest
    shutil.copyfile(data.tokenizer_file, directory / "tokenizer.json")
    facts = {
        "bos_token_id": manifest.bos_token_id,
        "eos_token_id": manifest.eos_token_id,
        "add_bos": manifest.add_bos,
        "add_eos": manifest.add_eos,
        "sources": manifest.sources,
        "train_tokens": manifest.splits["train"].tokens,
    }
    write_json(directory / TOKENS, facts)
