"""Generation, measured: the decoding loop of ``swila.generate`` beside transformers' own, for the same models.

A model is timed only if, in small and in float32 on the same device, its tokens are those of transformers' generate.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from swila.generation import GenerationState, generate, prefill
from swila.models import SwiLAConfig, SwiLAForCausalLM

WAYS = ("swila", "swila, compiled", "transformers")
FEW = 16  # tokens that transformers' way is timed on: it is slow


class Timing(NamedTuple):
    """One model at one batch size.

    Attributes:
        model: name of the preset.
        batch: rows.
        prefill_ms: reading the prompts.
        token_ms: one token of every row, by way of :data:`WAYS`; what was not timed is missing.
        start_s: the first call of each way, compiling and capturing included.
        peak_bytes: most memory while decoding by ``swila``, weights included.
        state_bytes: of all rows, after the prompt.
    """

    model: str
    batch: int
    prefill_ms: float
    token_ms: dict[str, float]
    start_s: dict[str, float]
    peak_bytes: int | None
    state_bytes: int


class LongText(NamedTuple):
    """What became of a long text.

    Attributes:
        model: name of the preset.
        tokens: read.
        read_s: how long that took.
        file_bytes: of the file the state was saved to.
        same: whether what was loaded from it went on with the same tokens and ended in the same state, bit for bit.
    """

    model: str
    tokens: int
    read_s: float
    file_bytes: int
    same: bool


def read_long_text(name: str, tokens: int, device: str, dtype: torch.dtype) -> LongText:
    """Read a long text of random tokens, keep the state in a file, and go on from the file."""
    with torch.device(device):
        model = SwiLAForCausalLM(SwiLAConfig.preset(name)).to(dtype).eval()
    text = torch.randint(model.config.vocab_size, (tokens,)).tolist()
    prefill(model, text[:20000])  # compiles what is compiled at first use
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
    """Why a model is not timed: its tokens, in small and in float32, are not those of transformers' generate."""
    torch.manual_seed(0)
    small = name.rpartition("-")[0] + "-tiny"
    model = SwiLAForCausalLM(SwiLAConfig.preset(small, vocab_size=vocabulary, initializer_range=0.05)).to(device).eval()
    rows = [torch.randint(1, vocabulary, (n,)).tolist() for n in (5, 40, 17)]
    found = generate(model, rows, max_new_tokens=24, stop=()).tokens
    for row, tokens in zip(rows, found, strict=True):
        ids = torch.tensor([row], device=device)
        expected = model.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=None)
        if expected[0, len(row) :].tolist() != tokens:
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
) -> tuple[list[Timing], dict[str, str]]:
    """Time the models at each batch size; also why some were refused.

    Args:
        names: presets.
        batches: rows at a time.
        prompt: tokens of each prompt.
        new: tokens that are generated.
        device: where.
        dtype: of the weights.
        compiled: whether to time the compiled way as well.
        repeats: turns, of which the median counts.
        progress: told what is being done.
    """
    timings, wrong = [], {}
    for name in names:
        progress(f"checking {name}")
        if reason := refused(name, device):
            wrong[name] = reason
            continue
        with torch.device(device):
            model = SwiLAForCausalLM(SwiLAConfig.preset(name)).to(dtype).eval()
        for batch in batches:
            progress(f"timing {name} with {batch} rows")
            timings.append(_time(model, name, batch, prompt, new, compiled, repeats))
        del model
    return timings, wrong


def _time(model: Any, name: str, batch: int, prompt: int, new: int, compiled: bool, repeats: int) -> Timing:
    ids = torch.randint(model.config.vocab_size, (batch, prompt), device=model.device)
    state = prefill(model, ids)
    reading = median(_seconds(lambda: prefill(model, ids), model) for _ in range(repeats))
    ways: dict[str, Callable[[int], Any]] = {}
    for compile in (False, True) if compiled else (False,):
        ways[WAYS[compile]] = partial(_by_swila, model, state, compile)
    ways[WAYS[2]] = partial(_by_transformers, model, ids, state)
    starts, tokens, peak = {}, {}, None
    for way, run in ways.items():
        n = new if way != WAYS[2] else FEW
        starts[way] = _seconds(partial(run, n), model)
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = [
            (_seconds(partial(run, n), model) - _seconds(partial(run, 1), model)) / (n - 1) for _ in range(repeats)
        ]
        tokens[way] = 1e3 * median(times)
        if model.device.type == "cuda" and way == WAYS[0]:
            peak = torch.cuda.max_memory_allocated()
    return Timing(name, batch, 1e3 * reading, tokens, starts, peak, state.num_bytes())


def _by_swila(model: Any, state: GenerationState, compile: bool, new: int) -> None:
    generate(model, state=state, stop=(), compile=compile, max_new_tokens=new)


def _by_transformers(model: Any, ids: torch.Tensor, state: GenerationState, new: int) -> None:
    """Transformers' loop from the same state on: it is handed the cache, and the last token to begin with."""
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
