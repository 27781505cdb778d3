"""Compile flash-linear-attention's kernels in several processes, so that a benchmark tunes them in less time.

    python tools/fla_warm_up.py --size 374m --size 1.3b --jobs 12

For every new size of heads flash-linear-attention compiles each of its kernels in tens of configurations, one after
the other, and times them: minutes in which the GPU is mostly idle. Here every process compiles its part of the
configurations into Triton's cache. Times are not kept: the benchmark that follows tunes as usual, with code from the
cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

NEVER = [float("inf")] * 3  # the three quantiles of a configuration that is left out


def compiling_a_part(bench: Callable[..., list[float]], part: int, parts: int) -> Callable[..., list[float]]:
    """Return a replacement of triton's ``Autotuner._bench`` that runs a configuration once if it is in this part.

    Args:
        bench: The method that is replaced.
        part: Number of this part, from 0.
        parts: Number of parts.
    """

    def once(call: Callable[[], object], quantiles: object = None) -> list[float]:
        call()
        return [1.0] * 3

    def replacement(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        index = next(i for i, each in enumerate(self.configs) if each is config or str(each) == str(config))
        if index % parts != part % len(self.configs):  # a part without one would launch the first, which has another
            return NEVER
        self.__dict__["do_bench"] = once  # a cached property
        return bench(self, *args, config=config, **meta)

    return replacement


def compile_part(part: int, parts: int, sizes: list[str], length: int) -> None:
    """Run the baselines of ``swila bench`` once, forward and backward, on a short batch."""
    os.environ["FLA_CACHE_RESULTS"] = "0"  # before the import of fla: what is found here is not a result
    import torch
    from triton.runtime.autotuner import Autotuner

    from swila.benchmarks.baselines import FEW_LANES, baseline_inputs, gdn_backward_allowed
    from swila.benchmarks.throughput.contenders import BASELINE, loss_of, make_model

    Autotuner._bench = compiling_a_part(Autotuner._bench, part, parts)
    with gdn_backward_allowed():
        operation, call = baseline_inputs("GDN", replace(FEW_LANES[0], B=1, T=length), "cuda")
        operation(**call).sum().backward()
        for size in sizes:
            model = make_model(BASELINE, size, "cuda", torch.bfloat16, depth=1)
            loss_of(model, torch.randint(1000, (1, length), device="cuda")).backward()
    torch.cuda.synchronize()


def main() -> None:
    """Start the processes, or in one of them compile its part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", default=[], help="size of the GDN model; repeat for several")
    parser.add_argument("--length", type=int, default=4096, help="tokens of the batch")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is not None:
        compile_part(given.part, given.jobs, given.size, given.length)
        return
    command = [sys.executable, __file__, "--jobs", str(given.jobs), "--length", str(given.length)]
    command += [word for size in given.size for word in ("--size", size)]
    running = [subprocess.Popen([*command, "--part", str(part)]) for part in range(given.jobs)]
    failed = [part for part, process in enumerate(running) if process.wait()]
    if failed:
        raise SystemExit(f"parts {', '.join(map(str, failed))} of {given.jobs} failed")


if __name__ == "__main__":
    main()
