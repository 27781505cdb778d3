"""Run the CUDA kernels on the CPU under ThreadSanitizer, which finds accesses of shared memory that no barrier orders.

    python tools/races.py                          # the calls of tools/sanitize.py, with many and few heads
    python tools/races.py --call split-temporal --order 0 --order 5

All kernels of a forward and a backward are run. Needs g++ with ThreadSanitizer, and no GPU; racecheck of
compute-sanitizer does not understand named barriers. The exit status is 1 if a race is found. ``--order`` is that of
the emulated threads: 0, 1 or 2, or 3 + n for a late warp n.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "ops")]

CALLS = import_module("tools.sanitize").CALLS
PROCESSORS = {"many heads": 1, "few heads": 132}


def races_in(name: str, processors: int, stats: bool, order: int) -> Iterator[tuple[str, list[str]]]:
    """Run a call forward and backward; yield each kernel that ran, with its races."""
    import torch
    from emulator.races import RaceDetector

    from swila.ops.backends import Backend, register_backend, unregister_backend
    from swila.ops.cuda.backend import Kernels, saved_like
    from swila.testing import VARIANTS, Shape, evaluate, make_call

    dtype, variant, sizes, lengths = CALLS[name]
    detector = RaceDetector(processors=processors, order=order)
    kernels = Kernels(detector)
    register_backend(Backend("emulated", "", kernels.forward, kernels.backward, saved_like))
    try:
        call = make_call(VARIANTS[variant], Shape(**sizes), lengths=lengths, dtype=getattr(torch, dtype))
        evaluate(call, "emulated", statistics=stats)
    finally:
        unregister_backend("emulated")
    yield from detector.found


def main() -> None:
    """Print the races of each call, and how many runs of kernels had none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", action="append", choices=list(CALLS), help="a call; default: all")
    parser.add_argument("--order", action="append", type=int, help="an order of the threads; default: 0 and 2")
    given = parser.parse_args()
    from emulator.races import unusable

    if reason := unusable():
        raise SystemExit(f"ThreadSanitizer cannot be used: {reason}")
    ran, racy = 0, 0
    forms = product(given.call or CALLS, PROCESSORS, (False, True), given.order or (0, 2))
    for name, heads, stats, order in forms:
        for kernel, races in races_in(name, PROCESSORS[heads], stats, order):
            ran, racy = ran + 1, racy + bool(races)
            for race in races:
                print(f"{kernel}, {name}, {heads}, order {order}{', statistics' * stats}: {race}", flush=True)
    print(f"{ran} runs of kernels, {racy} with races")
    raise SystemExit(racy > 0)


if __name__ == "__main__":
    main()
