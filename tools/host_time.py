"""Host time of an eager call of ``switching_delta_rule``: the operation with a backend that computes nothing.

    python tools/host_time.py                        # this checkout
    python tools/host_time.py --beside ../old/src    # and another version of the package, taking turns
    python tools/host_time.py --out results/host-time.json

Checks of values are off, as they are on a GPU. A turn is a new process. Its time is the mean of the fastest of ten
batches of calls, as in ``timeit``. The result is the median over turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
BATCHES = 10
MEASURED = {"forward": "forward, no gradients", "recorded": "forward", "backward": "forward and backward"}


def measure(calls: int) -> dict[str, dict[str, float]]:
    """Microseconds of a call in this process: variant -> measurement -> time."""
    import time
    from dataclasses import replace

    import torch

    from swila import register_backend, set_value_checks, switching_delta_rule
    from swila.ops.backends import get_backend
    from swila.ops.call import DIFFERENTIABLE, empty_results
    from swila.testing import VARIANTS, Shape, make_call
    from swila.testing.checks import leaves

    torch.set_num_threads(1)
    set_value_checks("never")
    gradients: dict[str, torch.Tensor] = {}

    def backward(x, options, saved, grads):
        if not gradients:
            given = {name: getattr(x, name) for name in DIFFERENTIABLE}
            gradients.update({name: torch.zeros_like(t) for name, t in given.items() if t is not None})
        return gradients

    register_backend(
        replace(
            get_backend("blocked"),
            name="nothing",
            forward=lambda x, options, save: (empty_results(x, options), []),
            backward=backward,
            saved_like=lambda x, options: [],
        )
    )

    def timed(work) -> float:
        batches = []
        for _ in range(BATCHES):
            start = time.perf_counter()
            for _ in range(calls // BATCHES):
                work()
            batches.append((time.perf_counter() - start) / (calls // BATCHES) * 1e6)
        return min(batches)

    found = {}
    for variant in ("plain", "gated-temporal"):
        call = make_call(VARIANTS[variant], Shape(B=1, T=16, H=1, K=16, V=16, J=2), initial_state=False)
        inputs = list(leaves(call).values())
        grad = torch.zeros_like(call["v"])
        gradients.clear()

        def forward(call=call):
            return switching_delta_rule(**call, backend="nothing").output

        def both(forward=forward, inputs=inputs, grad=grad):
            torch.autograd.grad(forward(), inputs, grad)

        with torch.no_grad():
            plain = timed(forward)
        found[variant] = {"forward": plain, "recorded": timed(forward), "backward": timed(both)}
    return found


def main() -> None:
    """Measure, print a table, and write the results file where one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, help="the src folder of another version of the package")
    parser.add_argument("--calls", type=int, default=2000, help="calls in a turn")
    parser.add_argument("--repeats", type=int, default=7, help="number of turns")
    parser.add_argument("--out", type=Path, help="the results file to write")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from swila.environment import environment

        print(json.dumps({"times": measure(options.calls), "environment": environment()}))
        return
    sources = {"this": ROOT / "src"} | ({"other": options.beside.resolve()} if options.beside else {})
    turns: dict[str, list[dict]] = {name: [] for name in sources}
    for _ in range(options.repeats):
        for name, source in sources.items():
            command = [sys.executable, __file__, "--child", "--calls", str(options.calls)]
            told = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True
            )
            if told.returncode:
                sys.exit(told.stderr)
            turns[name].append(json.loads(told.stdout))
    record: dict = {"device": "cpu", "calls": options.calls, "repeats": options.repeats, "microseconds": {}}
    for name, found in turns.items():
        record["microseconds"][name] = {
            variant: {what: round(median(turn["times"][variant][what] for turn in found), 1) for what in MEASURED}
            for variant in found[0]["times"]
        }
    record["environment"] = turns["this"][0]["environment"]
    record["other_environments"] = [found[0]["environment"] for name, found in turns.items() if name != "this"]
    for name, variants in record["microseconds"].items():
        for variant, times in variants.items():
            print(f"{name:>6} {variant:>15}: " + ", ".join(f"{MEASURED[w]} {t:.0f} µs" for w, t in times.items()))
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
