"""Compile the blocks of models in several processes, so that ``swila bench training`` finds them in the caches.

    python tools/compile_warm_up.py --model swila --model temporal-swila --length 2048 --length 16384

Each process runs forward and backward of one model at one length, with few layers: torch's compiler and our kernels
keep their code on disk by what is compiled, whatever the number of layers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from swila.benchmarks.throughput.attention import choose, preferring
from swila.benchmarks.throughput.checks import DEPTH, timed_model
from swila.benchmarks.throughput.contenders import loss_of
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
    import torch

    depth = DEPTH if model.startswith("hybrid") else 1  # a hybrid has layers of two kinds
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    made = timed_model(model, size, device, dtype, compiled=True, depth=depth)
    batch = torch.randint(made.config.vocab_size, (max(1, tokens // length), length), device=device)
    with compiling(), preferring(choose(made, *batch.shape, backward=True)):
        loss_of(made, batch).backward()


def run_all(commands: Sequence[Sequence[str]], jobs: int) -> list[int]:
    """Return the exit statuses of processes, of which at most ``jobs`` run at once."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(subprocess.call, commands))


def main() -> None:
    """Start the processes, or in one of them compile its case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, help="architecture; repeat for several")
    parser.add_argument("--length", action="append", type=int, required=True, help="tokens of a sequence; repeat")
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens of a micro-batch")
    parser.add_argument("--size", default="1.3b", help="size of the models")
    parser.add_argument("--device", default="cuda", help="device of the models")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes at once")
    parser.add_argument("--case", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        compile_case(given.model[0], given.size, given.length[0], given.tokens, given.device)
        return
    cases = list(product(given.model, given.length))
    shared = ["--tokens", str(given.tokens), "--size", given.size, "--device", given.device, "--case"]
    commands = [[sys.executable, __file__, "--model", model, "--length", str(T), *shared] for model, T in cases]
    statuses = run_all(commands, given.jobs)
    failed = [f"{model} at {T}" for (model, T), status in zip(cases, statuses, strict=True) if status]
    if failed:
        raise SystemExit(f"{', '.join(failed)} failed")


if __name__ == "__main__":
    main()
