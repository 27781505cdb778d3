"""Benchmark of generation: ``swila.generate`` against generate of transformers, for the same models.

A model is timed only if a tiny version of it gives the same tokens with both, in float32 on the same device.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from swila.generation import GenerationState, generate, prefill, release
from swila.models import SwiLAConfig, SwiLAForCausalLM

WAYS = ("swila", "swila, compiled", "transformers")
FEW = 16  # number of tokens for transformers, which is slow


class Timing(NamedTuple):
    """Times of one model at one batch size.

    Attributes:
        model: Name of the preset.
        batch: Batch size.
        prefill_ms: Time to read the prompts; None if that runs out of memory.
        token_ms: Time of a decode step of the batch, by entry of :data:`WAYS`; entries that were not timed are missing.
        start_s: Time of the first call, with compilation and capture, by entry of :data:`WAYS`.
        peak_bytes: Peak memory during decoding with ``swila``, weights included.
        state_bytes: Size of the state of the batch after the prompts.
        out_of_memory: What did not fit: ``"prompts"``, or entries of :data:`WAYS`.
    """

    model: str
    batch: int
    prefill_ms: float | None
    token_ms: dict[str, float]
    start_s: dict[str, float]
    peak_bytes: int | None
    state_bytes: int | None
    out_of_memory: tuple[str, ...] = ()


class LongText(NamedTuple):
    """Measurements of a long text.

    Attributes:
        model: Name of the preset.
        tokens: Number of tokens read.
        read_s: Time to read them.
        file_bytes: Size of the file of the state.
        same: Whether generation from the loaded state gives the same tokens and final state, bit for bit.
    """

    model: str
    tokens: int
    read_s: float
    file_bytes: int
    same: bool


def read_long_text(name: str, tokens: int, device: str, dtype: torch.dtype) -> LongText:
    """Read a long text of random tokens, save the state to a file, and resume from the file."""
    with torch.device(device):
        model = SwiLAForCausalLM(SwiLAConfig.preset(name)).to(dtype).eval()
    text = torch.randint(model.config.vocab_size, (tokens,)).tolist()
    prefill(model, text[:20000])  # compiles the kernels that are compiled at first use
    states: list[GenerationState] = []
    seconds = _seconds(lambda: states.append(prefill(model, text)), model)
    state = states[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        state.save(path, model)
        loaded, size = GenerationState.load(path, model), path.stat().st_size
    ends = [generate(model, state=s, max_new_tokens=32, stop=(), return_state=True) for s in (state, loaded)]
    hidden = [end.state.hidden for end in ends if end.state is not None]
    same = ends[0].tokens == ends[1].tokens and torch.equal(*hidden)
    return LongText(name, tokens, seconds, size, same)


def refused(name: str, device: str, vocabulary: int = 100) -> str | None:
    """Return why a model is not timed, or None: its tiny version must give the tokens of transformers' generate."""
    torch.manual_seed(0)
    small = name.rpartition("-")[0] + "-tiny"
    model = SwiLAForCausalLM(SwiLAConfig.preset(small, vocab_size=vocabulary, initializer_range=0.05)).to(device).eval()
    prompts = [torch.randint(1, vocabulary, (n,)).tolist() for n in (5, 40, 17)]
    found = generate(model, prompts, max_new_tokens=24, stop=()).tokens
    for prompt, tokens in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt], device=device)
        expected = model.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=None)
        if expected[0, len(prompt) :].tolist() != tokens:
            return f"{small} generates other tokens than with transformers' generate"
    return None


def benchmark(
    names: list[str],
    batches: list[int],
    prompt: int,
    new: int,
    device: str,
    dtype: torch.dtype,
    compiled: bool,
    repeats: int,
    progress: Callable[[str], None] = lambda text: None,
    save: Callable[[list[Timing], dict[str, str]], None] = lambda timings, wrong: None,
) -> tuple[list[Timing], dict[str, str]]:
    """Time the models at each batch size; returns the times, and why some models were refused.

    A case that runs out of memory is a :class:`Timing` that says so, and the next one follows.

    Args:
        names: Names of the presets.
        batches: Batch sizes.
        prompt: Number of tokens of each prompt.
        new: Number of tokens to generate.
        device: Device of the models.
        dtype: Dtype of the weights.
        compiled: Whether to time the compiled decode step as well.
        repeats: Number of measurements; the median counts.
        progress: Function that is called with a description of the current work.
        save: Called with the results so far after every case.
    """
    timings: list[Timing] = []
    wrong: dict[str, str] = {}
    for name in names:
        progress(f"checking {name}")
        if reason := refused(name, device):
            wrong[name] = reason
            save(timings, wrong)
            continue
        with torch.device(device):
            model = SwiLAForCausalLM(SwiLAConfig.preset(name)).to(dtype).eval()
        for batch in batches:
            progress(f"timing {name} with batch size {batch}")
            timings.append(_time(model, name, batch, prompt, new, compiled, repeats))
            save(timings, wrong)
            _free(model)
        del model
        _free()
    return timings, wrong


def _free(model: Any = None) -> None:
    """Free the buffers and graphs that are kept with a model, and what the allocator keeps."""
    if model is not None:
        release(model)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _time(model: Any, name: str, batch: int, prompt: int, new: int, compiled: bool, repeats: int) -> Timing:
    ids = torch.randint(model.config.vocab_size, (batch, prompt), device=model.device)
    try:
        state = prefill(model, ids)
        reading = median(_seconds(lambda: prefill(model, ids), model) for _ in range(repeats))
    except torch.OutOfMemoryError:
        return Timing(name, batch, None, {}, {}, None, None, ("prompts",))
    ways: dict[str, Callable[[int], Any]] = {}
    for compile in (False, True) if compiled else (False,):
        ways[WAYS[compile]] = partial(_by_swila, model, state, compile)
    ways[WAYS[2]] = partial(_by_transformers, model, ids, state)
    starts: dict[str, float] = {}
    tokens: dict[str, float] = {}
    peaks: dict[str, int | None] = {}
    too_large: list[str] = []
    for way, run in ways.items():
        try:
            starts[way], tokens[way], peaks[way] = _time_way(model, run, new if way != WAYS[2] else FEW, repeats)
        except torch.OutOfMemoryError:
            too_large.append(way)
        _free(model)
    return Timing(
        name, batch, 1e3 * reading, tokens, starts, peaks.get(WAYS[0]), state.num_bytes(), tuple(too_large)
    )  # fmt: skip


def _time_way(model: Any, run: Callable[[int], Any], new: int, repeats: int) -> tuple[float, float, int | None]:
    """Return the seconds of the first call, the milliseconds of a token, and the peak of memory on a GPU."""
    start = _seconds(partial(run, new), model)
    on_gpu = model.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times = [
        (_seconds(partial(run, new), model) - _seconds(partial(run, 1), model)) / (new - 1) for _ in range(repeats)
    ]
    return start, 1e3 * median(times), torch.cuda.max_memory_allocated() if on_gpu else None


def _by_swila(model: Any, state: GenerationState, compile: bool, new: int) -> None:
    generate(model, state=state, stop=(), compile=compile, max_new_tokens=new)


def _by_transformers(model: Any, ids: torch.Tensor, state: GenerationState, new: int) -> None:
    """Run generate of transformers from the same state: it gets the cache and the last token of the prompt."""
    cache = state.cache.map(lambda t: t)
    cache.set_seq_length(ids.shape[1] - 1)
    mask = torch.ones_like(ids)
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": new}
    model.generate(ids, attention_mask=mask, past_key_values=cache, **options)


def _seconds(run: Callable[[], Any], model: Any) -> float:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
