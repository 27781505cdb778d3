"""The recipes by name, and recipes from a user's Python file.

A name consists of an architecture and a size, as in :mod:`swila.models.language.presets`. There is a function for each
size. It returns the recipe of an architecture, with all fields; the model and its load-balancing weight are those of
the preset.

The paper gives the optimizer, the schedule and the batch at 374M, and the number of tokens of the ablation. The rest is
our choice, at every size: betas (0.9, 0.95), eps 1e-8, seed 0, bfloat16, micro-batches, and the intervals of
checkpoints, validation and logging.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from swila.models.language.presets import ARCHITECTURES, SIZES, get_preset
from swila.pretraining.recipe import (
    CheckpointRecipe,
    DataRecipe,
    ExecutionRecipe,
    LoggingRecipe,
    ModelRecipe,
    OptimizerRecipe,
    Recipe,
    ScheduleRecipe,
    ValidationRecipe,
)

PAPERS_OPTIMIZER = OptimizerRecipe(lr=3e-4, weight_decay=0.01, betas=(0.9, 0.95), eps=1e-8, clip=1.0)
PAPERS_BATCH = DataRecipe(length=4096, batch_size=128, packing="stream")


def recipe_374m(architecture: str) -> Recipe:
    """Return the recipe of one of the paper's thirteen language models (App. D, Pretraining Language Models).

    The paper gives: AdamW with learning rate 3e-4 and weight decay 0.01, a cosine with 954 warm-up steps down to a
    tenth, gradient norms clipped to 1.0, and 28,610 steps of 128 sequences of 4,096 tokens, in all 15B tokens.
    """
    return Recipe(
        name=f"{architecture}-374m",
        summary=f"{ARCHITECTURES[architecture].title} on 15B tokens, as in the paper",
        model=_model(f"{architecture}-374m"),
        schedule=ScheduleRecipe(steps=28_610, warmup_steps=954, schedule="cosine", min_lr=0.1),
        data=PAPERS_BATCH,
        optimizer=PAPERS_OPTIMIZER,
        execution=ExecutionRecipe(micro_batch=8),
        checkpoints=CheckpointRecipe(every=1000),
        validation=ValidationRecipe(every=1000, sequences=1024),
        logging=LoggingRecipe(every=10),
    )


def recipe_115m(architecture: str) -> Recipe:
    """Return the recipe of one of the six models of the paper's ablation (App. D, Ablation Study).

    The paper gives the number of tokens, 5B, and neither optimizer nor number of steps. We use the optimizer and the
    batch of 374M, with a third of the steps (9,537 steps are 5.0B tokens) and a third of the warm-up (318 steps).
    """
    return Recipe(
        name=f"{architecture}-115m",
        summary=f"{ARCHITECTURES[architecture].title} on 5B tokens, of the paper's ablation",
        model=_model(f"{architecture}-115m"),
        schedule=ScheduleRecipe(steps=9_537, warmup_steps=318, schedule="cosine", min_lr=0.1),
        data=PAPERS_BATCH,
        optimizer=PAPERS_OPTIMIZER,
        execution=ExecutionRecipe(micro_batch=8),
        checkpoints=CheckpointRecipe(every=1000),
        validation=ValidationRecipe(every=1000, sequences=1024),
        logging=LoggingRecipe(every=10),
    )


def recipe_1_3b(architecture: str) -> Recipe:
    """Return the recipe of one of the six models of the paper's throughput study.

    The paper does not train them. We use the optimizer, batch and warm-up of 374M and 20 tokens per parameter: 52,000
    steps are 27.3B tokens for 1.36B parameters.
    """
    return Recipe(
        name=f"{architecture}-1.3b",
        summary=f"{ARCHITECTURES[architecture].title} on 27B tokens, 20 per parameter; not trained in the paper",
        model=_model(f"{architecture}-1.3b"),
        schedule=ScheduleRecipe(steps=52_000, warmup_steps=954, schedule="cosine", min_lr=0.1),
        data=PAPERS_BATCH,
        optimizer=PAPERS_OPTIMIZER,
        execution=ExecutionRecipe(micro_batch=4),
        checkpoints=CheckpointRecipe(every=1000),
        validation=ValidationRecipe(every=1000, sequences=1024),
        logging=LoggingRecipe(every=10),
    )


def recipe_small(architecture: str) -> Recipe:
    """Return the recipe of one of the thirteen models for one GPU in minutes; all numbers are ours."""
    return Recipe(
        name=f"{architecture}-small",
        summary=f"{ARCHITECTURES[architecture].title} on 131M tokens, for one GPU in minutes",
        model=_model(f"{architecture}-small"),
        schedule=ScheduleRecipe(steps=1000, warmup_steps=100, schedule="cosine", min_lr=0.1),
        data=DataRecipe(length=2048, batch_size=64, packing="stream"),
        optimizer=OptimizerRecipe(lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8, clip=1.0),
        execution=ExecutionRecipe(micro_batch=32),
        checkpoints=CheckpointRecipe(every=250),
        validation=ValidationRecipe(every=250, sequences=256),
        logging=LoggingRecipe(every=10),
    )


def recipe_tiny(architecture: str) -> Recipe:
    """Return the recipe of one of the thirteen models for two CPU cores in minutes; all numbers are ours.

    The vocabulary is that of the data.
    """
    return Recipe(
        name=f"{architecture}-tiny",
        summary=f"{ARCHITECTURES[architecture].title} on 0.4M tokens, for a CPU in minutes",
        model=_model(f"{architecture}-tiny", vocab_size=None),
        schedule=ScheduleRecipe(steps=200, warmup_steps=20, schedule="cosine", min_lr=0.1),
        data=DataRecipe(length=256, batch_size=8, packing="stream"),
        optimizer=OptimizerRecipe(lr=2e-3, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8, clip=1.0),
        precision="float32",
        execution=ExecutionRecipe(micro_batch=8),
        checkpoints=CheckpointRecipe(every=50),
        validation=ValidationRecipe(every=50, sequences=64),
        logging=LoggingRecipe(every=1),
    )


def _model(preset: str, vocab_size: int | None = 32_000) -> ModelRecipe:
    return ModelRecipe(**get_preset(preset), vocab_size=vocab_size)


OF_SIZE: dict[str, Callable[[str], Recipe]] = {
    "tiny": recipe_tiny,
    "small": recipe_small,
    "115m": recipe_115m,
    "374m": recipe_374m,
    "1.3b": recipe_1_3b,
}
RECIPES: dict[str, Callable[[], Recipe]] = {
    f"{architecture}-{size}": partial(function, architecture)
    for size, function in OF_SIZE.items()
    for architecture in SIZES[size].widths
}


def recipe_names(size: str | None = None) -> list[str]:
    """Return the names of all recipes, or of those of a size, small sizes first."""
    if size is None:
        return list(RECIPES)
    if size.lower() not in OF_SIZE:
        raise ValueError(f"size must be one of {', '.join(OF_SIZE)}, got {size!r}")
    return [f"{architecture}-{size.lower()}" for architecture in SIZES[size.lower()].widths]


def get_recipe(name: str) -> Recipe:
    """Return the recipe of a name; raise ValueError with close names if there is none."""
    if name.lower() not in RECIPES:
        close = difflib.get_close_matches(name.lower(), RECIPES, 3)
        raise ValueError(
            f"recipe must be ARCHITECTURE-SIZE, such as temporal-swila-374m, or a Python file, got {name!r}. "
            + (f"Did you mean {' or '.join(close)}?" if close else "`swila recipes` lists all names")
        )
    return RECIPES[name.lower()]()


def load_recipe(text: str) -> Recipe:
    """Return the recipe that a name or a Python file gives.

    Args:
        text: The name of a recipe, ``my_recipe.py``, or ``my_recipe.py:function``. The function, by default ``recipe``,
            takes no arguments and returns a :class:`Recipe`.
    """
    found = re.fullmatch(r"(.+\.py)(?::(\w+))?", text)
    if not found:
        return get_recipe(text)
    path, name = Path(found[1]), found[2] or "recipe"
    if not path.is_file():
        raise ValueError(f"recipe: there is no file {str(path)!r}")
    module = _run_file(path)
    function = getattr(module, name, None)
    if not callable(function):
        there = [each for each, made in vars(module).items() if _is_function_of(made, module)]
        raise ValueError(
            f"recipe: {path} must have a function {name!r}, "
            f"has {', '.join(there) or 'none'}; {path}:FUNCTION chooses another"
        )
    try:
        recipe = function()
    except Exception as error:
        raise ValueError(f"recipe: {name}() of {path} failed{_where(error, path)}") from error
    if not isinstance(recipe, Recipe):
        raise ValueError(f"recipe: {name}() of {path} must return a Recipe, got {type(recipe).__name__}")
    try:
        recipe.check()
    except ValueError as error:
        raise ValueError(f"recipe: {name}() of {path} returns an invalid recipe: {error}") from None
    return recipe


def _run_file(path: Path) -> ModuleType:
    name = f"swila_recipe_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"recipe: {path} failed{_where(error, path)}") from error
    return module


def _is_function_of(made: Any, module: ModuleType) -> bool:
    return inspect.isfunction(made) and made.__module__ == module.__name__ and not made.__name__.startswith("_")


def _where(error: Exception, path: Path) -> str:
    """Return the last line of the file that the error passed through, and the error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path.absolute()]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    return f"{f' in line {lines[-1]}' if lines else ''}: {type(error).__name__}: {error}"
