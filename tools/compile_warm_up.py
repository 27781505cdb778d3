"""Compile models in several processes, so that ``swila bench training`` and ``generation`` find them in the caches.

    python tools/compile_warm_up.py --model swila --model temporal-swila --length 2048 --length 16384
    python tools/compile_warm_up.py --model swila --model gdn --generation

Each process runs one model, with few layers: forward and backward at one length, or with ``--generation`` the calls of
``swila bench generation`` at all batch sizes. Torch's compiler, Triton and our kernels keep their code on disk by what
is compiled, whatever the number of layers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import torch

from swila.benchmarks.throughput import generation
from swila.benchmarks.throughput.attention import choose, preferring
from swila.benchmarks.throughput.checks import DEPTH, timed_model
from swila.benchmarks.throughput.contenders import loss_of, make_model
from swila.generation import release
from swila.training.compilation import compiling


def compile_case(model: str, size: str, length: int, tokens: int, device: str) -> None:
    """Run forward and backward of a micro-batch, compiled as by the benchmark.

    Args:
        model: Architecture.
        size: Size of the preset.
        length: Tokens of a sequence.
        tokens: Tokens of a micro-batch.
        device: Device of the model.
    """
    made = timed_model(model, size, device, _dtype(device), compiled=True, depth=_depth(model))
    batch = torch.randint(made.config.vocab_size, (max(1, tokens // length), length), device=device)
    with compiling(), preferring(choose(made, *batch.shape, backward=True)):
        loss_of(made, batch).backward()


def compile_generation(model: str, size: str, batches: Sequence[int], prompt: int, device: str) -> None:
    """Generate a few tokens at each batch size, and run the forward that reading prompts is compared with.

    Args:
        model: Architecture.
        size: Size of the preset.
        batches: Batch sizes.
        prompt: Tokens of each prompt.
        device: Device of the model.
    """
    made = make_model(model, size, device, _dtype(device), _depth(model)).eval()
    setting = generation.Setting(size, device, _dtype(device), prompt, 4, device != "cpu", calls=1, warm_up=1)
    for batch in batches:
        generation.measure(made, batch, setting)
        release(made)
    generation.forward_ms(made, min(max(batches), generation.LARGEST_FORWARD), setting)


def _depth(model: str) -> int:
    return DEPTH if model.startswith("hybrid") else 1  # a hybrid has layers of two kinds


def _dtype(device: str) -> torch.dtype:
    return torch.float32 if device == "cpu" else torch.bfloat16


def run_all(commands: Sequence[Sequence[str]], jobs: int) -> list[int]:
    """Return the exit statuses of processes, of which at most ``jobs`` run at once."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(subprocess.call, commands))


def main() -> None:
    """Start the processes, or in one of them compile its case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, help="architecture; repeat for several")
    parser.add_argument("--length", action="append", type=int, help="tokens of a sequence in training; repeat")
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens of a micro-batch")
    parser.add_argument("--generation", action="store_true", help="compile what generation runs, not training")
    parser.add_argument("--batch", action="append", type=int, help="batch size of generation; default 1, 2, ..., 128")
    parser.add_argument("--prompt", type=int, default=generation.PROMPT, help="tokens of each prompt")
    parser.add_argument("--size", default="1.3b", help="size of the models")
    parser.add_argument("--device", default="cuda", help="device of the models")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes at once")
    parser.add_argument("--case", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.generation == bool(given.length):
        parser.error("give either --length or --generation")
    batches = given.batch or generation.BATCHES
    if given.case and given.generation:
        compile_generation(given.model[0], given.size, batches, given.prompt, given.device)
        return
    if given.case:
        compile_case(given.model[0], given.size, given.length[0], given.tokens, given.device)
        return
    shared = ["--size", given.size, "--device", given.device, "--case"]
    if given.generation:
        cases = {model: ["--model", model] for model in given.model}
        shared = [
            "--generation",
            *(w for b in batches for w in ("--batch", str(b))),
            "--prompt",
            str(given.prompt),
            *shared,
        ]
    else:
        pairs = product(given.model, given.length)
        cases = {f"{model} at {T}": ["--model", model, "--length", str(T)] for model, T in pairs}
        shared = ["--tokens", str(given.tokens), *shared]
    statuses = run_all([[sys.executable, __file__, *words, *shared] for words in cases.values()], given.jobs)
    failed = [name for name, status in zip(cases, statuses, strict=True) if status]
    if failed:
        raise SystemExit(f"{', '.join(failed)} failed")


if __name__ == "__main__":
    main()
