"""Benchmark of pretraining on a GPU: ``swila pretrain`` beside a bare loop over the same model."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from swila.data import write_tokens
from swila.pretraining.engine import News, pretrain
from swila.pretraining.flops import flops_per_token, mfu, peak_flops
from swila.pretraining.plan import plan
from swila.pretraining.recipe import Recipe
from swila.pretraining.recipes import get_recipe
from swila.training.compilation import compiling

MODELS = ("swila", "temporal-swila", "gdn", "transformer")
WARM_UP = 6


class _Timed(Exception):
    """Ends the engine's run after the last timed update: its checkpoint is not wanted."""


def benchmarked(name: str, length: int, batch_size: int, updates: int) -> Recipe:
    """Return a recipe with one micro-batch per update, without validation and checkpoints in between."""
    recipe = get_recipe(name)
    return replace(
        recipe,
        data=replace(recipe.data, length=length, batch_size=batch_size),
        schedule=replace(recipe.schedule, steps=WARM_UP + updates + 1),
        execution=replace(recipe.execution, micro_batch=batch_size),
        checkpoints=replace(recipe.checkpoints, every=10**6),
        validation=replace(recipe.validation, every=10**6),
        logging=replace(recipe.logging, every=WARM_UP - 1),  # the first in the warm-up: it loads kernels
        stability=replace(recipe.stability, max_loss_increase=None),
    )


def measure(recipe: Recipe, updates: int, report: Callable[[str], None], masters: bool = True) -> dict[str, Any]:
    """Measure tokens per second and peak memory of the engine and of two bare loops.

    Both bare loops have compiled blocks, fused AdamW, clipping, and one batch that is on the GPU already. One has
    weights and moments in bfloat16. The other has them in float32, as the engine does, and computes under autocast. The
    engine also reads its data, checks every loss and writes metrics.

    Args:
        recipe: Recipe from :func:`benchmarked`.
        updates: Number of timed updates.
        report: Function that is called with a description of the current work.
        masters: Whether to measure the loop with float32 weights.
    """
    report(f"{recipe.name}: bare loop, weights in bfloat16")
    bare = {"bfloat16": bare_loop(recipe, updates, torch.bfloat16)}
    report(f"{recipe.name}: engine")
    engine = with_engine(recipe, updates)
    if masters:
        report(f"{recipe.name}: bare loop, weights in float32")
        bare["float32"] = bare_loop(recipe, updates, torch.float32)
    flops = flops_per_token(_model(recipe), recipe.data.length)
    peak = peak_flops(torch.cuda.get_device_name())
    for found in (*bare.values(), engine):
        found["mfu"] = None if peak is None else mfu(found["tokens_per_second"], flops.training, 1, peak)
    return {
        "recipe": recipe.name,
        "length": recipe.data.length,
        "batch_size": recipe.data.batch_size,
        "flops_per_token": flops._asdict(),
        "bare": bare,
        "engine": engine,
        "planned_gb": plan(recipe).memory.total / 1e9,
    }


def bare_loop(recipe: Recipe, updates: int, weights: torch.dtype) -> dict[str, Any]:
    """Return tokens per second and peak memory of a loop of a few lines, with weights in this dtype."""
    from swila.models.language.modeling import SwiLAForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = SwiLAForCausalLM(recipe.model.config(recipe.data.length)).to(weights).train()
        tokens = torch.randint(model.config.vocab_size, (recipe.data.batch_size, recipe.data.length + 1))
    for block in model.model.layers:
        block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    times = []
    for step in range(WARM_UP + updates):
        if step == WARM_UP:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        with compiling():
            with torch.autocast("cuda", torch.bfloat16, enabled=weights == torch.float32):
                loss = model(tokens[:, :-1], shift_labels=tokens[:, 1:].contiguous(), use_cache=False).loss
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    found = _summary(times[WARM_UP:], recipe)
    del model, optimizer, tokens, loss
    _free()
    return found


def with_engine(recipe: Recipe, updates: int) -> dict[str, Any]:
    """Return tokens per second and peak memory of ``swila pretrain`` on random tokens."""
    times: list[float] = []

    def note(news: News) -> None:
        if news.step == WARM_UP:
            torch.cuda.reset_peak_memory_stats()
        times.append(time.perf_counter())
        if news.step == WARM_UP + updates:
            raise _Timed

    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder) / "tokens"
        size = recipe.tokens_per_step * 4 + 1
        stream = torch.randint(recipe.model.vocab_size or 32000, (size,), generator=torch.Generator().manual_seed(0))
        (Path(folder) / "tokenizer.json").write_text(json.dumps({}))
        write_tokens(tokens, {"train": [stream.numpy()]}, Path(folder) / "tokenizer.json", 32000)
        with suppress(_Timed):
            pretrain(recipe, tokens, Path(folder) / "run", "cuda", report=note)
    found = _summary([b - a for a, b in zip(times[WARM_UP - 1 :], times[WARM_UP:], strict=False)], recipe)
    _free()
    return found


def _summary(times: list[float], recipe: Recipe) -> dict[str, Any]:
    return {
        "tokens_per_second": recipe.tokens_per_step * len(times) / sum(times),
        "milliseconds": 1e3 * median(times),
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
    }


def _model(recipe: Recipe) -> Any:
    from swila.pretraining.initialization import make_on_meta

    return make_on_meta(recipe.model.config(recipe.data.length))


def _free() -> None:
    torch._dynamo.reset()  # graphs of models that are gone would slow down the lookup
    gc.collect()
    torch.cuda.empty_cache()
