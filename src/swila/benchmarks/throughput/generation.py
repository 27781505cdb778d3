"""Figure S4: generation from long prompts, at growing batch sizes until the memory is used up."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swila.benchmarks.baselines import copy_bandwidth
from swila.benchmarks.generation import refused
from swila.benchmarks.throughput import fla_generation
from swila.benchmarks.throughput.attention import choose, preferring
from swila.benchmarks.throughput.checks import compile_blocks
from swila.benchmarks.throughput.contenders import BASELINES, make_model
from swila.benchmarks.throughput.memory import forget_peak, free, in_short, out_of_memory, peak_bytes, synchronize
from swila.benchmarks.throughput.results import Results
from swila.generation import generate
from swila.generation.api import release
from swila.models import SwiLAForCausalLM
from swila.training.compilation import compiling

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPT, NEW = 2048, 128
CALLS = 3
WARM_UP = 2  # prompts are captured in a graph in the second call
KEYS = ("model", "batch", "compiled")
CHOSEN_AT = 16  # sequences, at most, for which a backend of softmax attention is chosen
LARGEST_FORWARD = 64  # sequences of the forward that reading prompts is compared with


class Setting(NamedTuple):
    """What all cases share.

    Attributes:
        size: Size of the presets.
        device: Device of the models.
        dtype: Dtype of the weights.
        prompt: Tokens of a prompt.
        new: Tokens to generate for each prompt.
        compiled: Whether the decode step is compiled.
        calls: Number of timed calls.
        warm_up: Number of calls before them.
    """

    size: str
    device: str
    dtype: torch.dtype
    prompt: int = PROMPT
    new: int = NEW
    compiled: bool = True
    calls: int = CALLS
    warm_up: int = WARM_UP


def benchmark(
    models: Sequence[str],
    batches: Sequence[int],
    setting: Setting,
    results: Results,
    report: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Measure the models at growing batch sizes, and return the new rows.

    After the first batch that does not fit, larger ones are left out. A model that generates other tokens than
    transformers' ``generate`` is not timed, and an error is a row that says so. The baseline, flash-linear-attention's
    model, generates by transformers' ``generate`` itself, eagerly.

    Args:
        models: Architectures, or the baseline.
        batches: Batch sizes.
        setting: What all cases share.
        results: Where rows go, after each case.
        report: Function that is called with a description of the current work.
    """
    on_gpu = setting.device.startswith("cuda")
    if on_gpu and "copy_bytes_per_ms" not in results.record:
        results.record["copy_bytes_per_ms"] = copy_bandwidth(setting.device)
    new: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        results.add(row)
        new.append(row)

    for name in models:
        compiled = _compiles(name, setting)
        missing = [batch for batch in sorted(batches) if not results.has(model=name, compiled=compiled, batch=batch)]
        if not missing or _full(results, name, compiled, min(missing)):
            continue
        report(f"{name}: checking")
        reason = _why_refused(name, setting)
        if reason is not None:
            add(_row(name, missing[0], setting) | {"status": "refused", "reason": reason})
            continue
        _time_model(name, missing, setting, results, add, report)
        free(setting.device)
    return new


def _compiles(name: str, setting: Setting) -> bool:
    return setting.compiled and name not in BASELINES


def _full(results: Results, model: str, compiled: bool, batch: int) -> bool:
    """Whether a batch of at most this size ran out of memory already."""
    return any(
        row["model"] == model
        and row["compiled"] == compiled
        and row["status"] == "out of memory"
        and row["batch"] <= batch
        for row in results.record["rows"]
    )


def _why_refused(name: str, setting: Setting) -> str | None:
    try:
        if name in BASELINES:
            return fla_generation.why_refused(setting.size, setting.device, setting.dtype, setting.prompt)
        return refused(f"{name}-{setting.size}", setting.device)
    except Exception as crash:
        return f"crashed: {in_short(crash)}"


def _row(name: str, batch: int, setting: Setting) -> dict[str, Any]:
    return {
        "model": name,
        "batch": batch,
        "compiled": _compiles(name, setting),
        "status": "timed",
        "reason": None,
    }


def _time_model(
    name: str,
    batches: Sequence[int],
    setting: Setting,
    results: Results,
    add: Callable[[dict[str, Any]], None],
    report: Callable[[str], None],
) -> None:
    model = make_model(name, setting.size, setting.device, setting.dtype).eval()
    for batch in batches:
        report(f"{name}: batch {batch}")
        row = _row(name, batch, setting)
        try:
            row |= measure(model, batch, setting)
        except Exception as error:
            lack = out_of_memory(error)
            row |= {"status": "out of memory" if lack else "failed", "reason": in_short(error)}
        release(model)
        _empty(setting.device)
        if row["status"] == "timed" and batch == 1 and "copy_bytes_per_ms" in results.record:
            size = sum(p.numel() * p.element_size() for p in model.parameters())
            row["weights_ms"] = size / results.record["copy_bytes_per_ms"]
        add(row)
        if row["status"] == "out of memory":
            break
    if name in BASELINES:
        return
    report(f"{name}: a forward of the training model")
    timed = [
        row
        for row in results.record["rows"]
        if (row["model"], row["compiled"], row["status"]) == (name, setting.compiled, "timed")
        and row["batch"] <= LARGEST_FORWARD
    ]
    for row in sorted(timed, key=lambda row: -row["batch"]):
        try:
            found = forward_ms(model, row["batch"], setting)
        except Exception as error:
            if not out_of_memory(error):
                row["forward_failed"] = in_short(error)
                break
        else:
            row["forward_ms"] = found
            break
        finally:
            _empty(setting.device)
    results.save()


def measure(model: Any, batch: int, setting: Setting) -> dict[str, Any]:
    """Return throughput, times and peak memory of generation with one batch size; raises if it does not fit.

    The time of a call is that of the whole routine. ``prompt_ms`` is its part until the prompts are read, and
    ``step_ms`` the rest by the number of new tokens.
    """
    device = setting.device
    prompts = _prompts(model, batch, setting)
    attention = choose(model, min(batch, CHOSEN_AT), setting.prompt, backward=False)
    with preferring(attention):
        for _ in range(setting.warm_up):
            call(model, prompts, setting)
        synchronize(device)
        forget_peak(device)
        turns = [call(model, prompts, setting) for _ in range(setting.calls)]
    whole, reading = (sum(times) / len(times) for times in zip(*turns, strict=True))
    return {
        "tokens_per_second": batch * setting.new / whole,
        "call_ms": 1e3 * whole,
        "prompt_ms": 1e3 * reading,
        "step_ms": 1e3 * (whole - reading) / setting.new,
        "turns_ms": [1e3 * each for each, _ in turns],
        "peak_bytes": peak_bytes(device),
        "parameters": sum(p.numel() for p in model.parameters()),
        "attention": attention,
    }


def call(model: Any, prompts: Tensor, setting: Setting) -> tuple[float, float]:
    """Return the seconds of a call of :func:`swila.generate`, and those until it had read the prompts.

    For a model that is not ours, those of transformers' ``generate``, and until its first token.
    """
    read_at: list[float] = []

    def progress(*done: int) -> None:
        synchronize(setting.device)
        read_at.append(time.perf_counter())

    synchronize(setting.device)
    began = time.perf_counter()
    if isinstance(model, SwiLAForCausalLM):
        generate(model, prompts, max_new_tokens=setting.new, stop=(), compile=setting.compiled, progress=progress)
    else:
        fla_generation.generate_greedily(model, prompts, setting.new, progress)
    synchronize(setting.device)
    return time.perf_counter() - began, read_at[-1] - began


def forward_ms(model: Any, batch: int, setting: Setting) -> float:
    """Return the time of a forward of the training model on the prompts: compiled as there, without cache and head."""
    prompts = _prompts(model, batch, setting)
    if setting.compiled:
        compile_blocks(model)
    times = []
    try:
        attention = choose(model, min(batch, CHOSEN_AT), setting.prompt, backward=False)
        with torch.no_grad(), compiling(), preferring(attention):
            for turn in range(2 + setting.calls):
                synchronize(setting.device)
                began = time.perf_counter()
                model.model(prompts, use_cache=False)
                synchronize(setting.device)
                if turn >= 2:
                    times.append(time.perf_counter() - began)
    finally:
        for block in model.model.layers:
            block.__dict__.pop("forward", None)
    return 1e3 * sum(times) / len(times)


def _prompts(model: Any, batch: int, setting: Setting) -> Tensor:
    shape, generator = (batch, setting.prompt), torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, shape, generator=generator).to(setting.device)


def _empty(device: str) -> None:
    """Free memory, but keep what is compiled for the model, which is still in use."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
