"""Time the CUDA kernels of several versions of the sources in turns, after a check of each.

    python tools/kernel_times.py --tree src --tree ../before/src temporal:8,4096,8 plain:1,65536,8 plain:16,4096,8:s

A case is a variant and B,T,H, with K = V = 64 and J = 4 in bfloat16; ``:s`` asks for routing statistics. Every tree
runs in processes of its own. First all trees compile at once, and output and gradients of a short sequence are compared
with the blocked backend in float32. Then the trees take turns. A time is the median over groups of calls that follow
each other without a pause, so that host time does not count where a call takes longer on the device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ALLOWED = 0.03  # relative error against float32, a few times that of bfloat16 operands
CHECKED_TOKENS = 96
GROUPS, CALLS = 5, 8


@dataclass(frozen=True)
class Case:
    """A call: variant of the recurrence, sizes, and whether it returns routing statistics."""

    variant: str
    sizes: tuple[int, int, int]
    stats: bool

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case that a word of the command line stands for."""
        variant, sizes, *rest = text.split(":")
        numbers = tuple(map(int, sizes.split(",")))
        if len(numbers) != 3 or rest not in ([], ["s"]):
            raise SystemExit(f"a case must be VARIANT:B,T,H or VARIANT:B,T,H:s, got {text}")
        return cls(variant, (numbers[0], numbers[1], numbers[2]), rest == ["s"])


def operands(case: Case, tokens: int | None = None) -> tuple[dict[str, Any], Any]:
    """Return the inputs of a case and the gradient of its output."""
    import torch

    from swila.benchmarks.baselines import inputs_of
    from swila.testing import VARIANTS, Shape

    B, T, H = case.sizes
    call = inputs_of(VARIANTS[case.variant], Shape(B=B, T=tokens or T, H=H, K=64, V=64, J=4), "cuda")
    return call, torch.randn_like(call["v"])


def errors(case: Case) -> dict[str, float]:
    """Return relative errors of output and gradients against the blocked backend in float32."""
    import torch

    from swila.ops import switching_delta_rule

    call, dout = operands(case, CHECKED_TOKENS)

    def results(backend: str, dtype: torch.dtype) -> list[torch.Tensor]:
        x = {name: t.detach().to(dtype).requires_grad_() for name, t in call.items()}
        found = switching_delta_rule(**x, routing_stats=case.stats, backend=backend)
        loss = (found.output.float() * dout.float()).sum()
        if case.stats:
            loss = loss + sum(part.sum() for part in found.stats)
        return [found.output.detach().float(), *(g.float() for g in torch.autograd.grad(loss, list(x.values())))]

    pairs = zip(results("cuda", torch.bfloat16), results("blocked", torch.float32), strict=True)
    return {name: ((a - b).norm() / b.norm()).item() for name, (a, b) in zip(["output", *call], pairs, strict=True)}


def times(case: Case) -> dict[str, float]:
    """Return the milliseconds of a forward, and of a forward and backward."""
    import torch

    from swila.ops import switching_delta_rule

    call, dout = operands(case)

    def forward() -> Any:
        return switching_delta_rule(**call, routing_stats=case.stats, backend="cuda").output

    def both() -> None:
        torch.autograd.grad(forward(), list(call.values()), dout)

    def timed(work: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        found = []
        for _ in range(GROUPS):
            begin.record()
            for _ in range(CALLS):
                work()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end) / CALLS)
        return median(found)

    both()
    both()
    return {"forward": timed(forward), "both": timed(both)}


def child(mode: str, cases: list[Case]) -> None:
    """Print a line of JSON for each case."""
    for case in cases:
        print(json.dumps(errors(case) if mode == "check" else times(case)), flush=True)


def start(tree: Path, mode: str, cases: list[str]) -> subprocess.Popen[str]:
    """Start a process with the sources of a tree."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, __file__, "--child", mode, *cases]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def answers(process: subprocess.Popen[str], cases: list[str]) -> dict[str, dict[str, float]]:
    """Return what a process printed, by case; stop if it failed."""
    text, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args} failed")
    return dict(zip(cases, map(json.loads, text.splitlines()), strict=True))


def wrong(found: dict[str, dict[str, float]]) -> list[str]:
    """Return the cases of a tree with an error that is too large, or not a number."""
    return [case for case, errors in found.items() if not all(error <= ALLOWED for error in errors.values())]


def main() -> None:
    """Check all trees at once, then time them in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="CASE", help="VARIANT:B,T,H, or VARIANT:B,T,H:s with statistics")
    parser.add_argument("--tree", action="append", type=Path, help="folder that holds the package; default: src")
    parser.add_argument("--turns", type=int, default=2, help="number of turns")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--child", choices=["check", "time"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    cases = [Case.parse(text) for text in given.cases]
    if given.child:
        child(given.child, cases)
        return
    trees = given.tree or [Path("src")]
    checks = {tree: start(tree, "check", given.cases) for tree in trees}
    checked = {tree: answers(process, given.cases) for tree, process in checks.items()}
    right = [tree for tree in trees if not wrong(checked[tree])]
    for tree in trees:
        worst = max(error for errors in checked[tree].values() for error in errors.values())
        print(
            f"{tree}: largest error {worst:.1e}"
            + ("" if tree in right else f", WRONG: {', '.join(wrong(checked[tree]))}")
        )
    turns: list[dict[str, Any]] = []
    for _ in range(given.turns):
        for tree in right:
            found = answers(start(tree, "time", given.cases), given.cases)
            turns.append({"tree": str(tree), "times": found})
            told = ", ".join(f"{case} {ms['forward']:.3f} {ms['both']:.3f}" for case, ms in found.items())
            print(f"{tree}: forward, forward + backward: {told}", flush=True)
    if given.out:
        errors_of = {str(tree): found for tree, found in checked.items()}
        given.out.write_text(json.dumps({"errors": errors_of, "turns": turns}, indent=1) + "\n")
    if len(right) < len(trees):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
