"""Time the kernels of several versions of the sources in turns, after a check of each.

    python tools/kernel_times.py --tree src --tree ../before/src temporal:8,4096,8 plain:16,4096,8:s conv:32768

A case of the operation is a variant and B,T,H or B,T,H,K,V, with J = 4 in bfloat16 and K = V = 64 unless given;
``:s`` asks for routing statistics. A case of a fused piece is its name (conv, norm, heads, swiglu, expand) and a
number of tokens, with the sizes of SwiLA at 374M; beside its times are those of moving its bytes at the bandwidth of
a copy. Every tree runs in processes of its own. First all trees compile at once, and output and gradients of a short
sequence are compared with plain torch in float32. Then the trees take turns. A time is the median over groups of
calls. The device is kept busy until the host has launched a group, so that host time does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

ALLOWED = 0.03  # relative error against float32, a few times that of bfloat16 operands
CHECKED_TOKENS = 96
BUSY = 60_000_000  # cycles for which the device waits before a group
GROUPS, CALLS = 5, 8
PIECES = ("conv", "norm", "heads", "swiglu", "expand")


@dataclass(frozen=True)
class Case:
    """A call: variant of the recurrence or name of a piece, sizes, and whether it returns routing statistics."""

    name: str
    sizes: tuple[int, ...]
    stats: bool = False

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case that a word of the command line stands for."""
        name, *rest = text.split(":")
        sizes = tuple(int(number) if number.isdigit() else 0 for number in (rest or [""])[0].split(","))
        numbers, options = ((1,), ([],)) if name in PIECES else ((3, 5), ([], ["s"]))
        if len(sizes) not in numbers or not all(sizes) or rest[1:] not in options:
            raise SystemExit(
                "a case must be VARIANT:B,T,H or VARIANT:B,T,H,K,V, either with :s or without, or "
                f"{'|'.join(PIECES)}:TOKENS, got {text}"
            )
        return cls(name, sizes, rest[1:] == ["s"])


@dataclass(frozen=True)
class Work:
    """What is timed.

    Attributes:
        function: Function of the leaves; returns its results.
        reference: The same in plain torch.
        leaves: Inputs by name.
        elements: Numbers of elements that a forward and a backward read and write at least; None for the operation.
    """

    function: Callable[..., list[Any]]
    reference: Callable[..., list[Any]]
    leaves: dict[str, Any]
    elements: tuple[int, int] | None = None


def work_of(case: Case, tokens: int | None = None) -> Work:
    """Return the work of a case, with fewer tokens if a number is given."""
    if case.name in PIECES:
        return piece(case.name, tokens or case.sizes[0])
    from swila.benchmarks.baselines import inputs_of
    from swila.ops import switching_delta_rule
    from swila.testing import VARIANTS, Shape

    B, T, H, K, V = case.sizes if len(case.sizes) == 5 else (*case.sizes, 64, 64)
    leaves = inputs_of(VARIANTS[case.name], Shape(B=B, T=tokens or T, H=H, K=K, V=V, J=4), "cuda")

    def run(backend: str, **x: Any) -> list[Any]:
        found = switching_delta_rule(**x, routing_stats=case.stats, backend=backend)
        return [found.output, *(found.stats or ())]

    return Work(partial(run, "cuda"), partial(run, "blocked"), leaves)


def piece(name: str, N: int, device: str = "cuda") -> Work:
    """Return the work of a fused piece on N tokens; some leaves are parts of wider rows, as in a layer."""
    import torch
    from torch.nn import functional as F

    from swila.ops.fused import expand, rms_norm, short_conv, swiglu

    def drawn(*shape: int, grad: bool = True) -> Any:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16).requires_grad_(grad)

    def part(t: Any, first: int, width: int) -> Any:
        return t.detach()[..., first : first + width].requires_grad_()

    if name == "conv":
        leaves = {"x": part(drawn(1, N, 1728), 512, 512), "weight": drawn(512, 4)}

        def convolved(call: Callable[..., Any], x: Any, weight: Any) -> list[Any]:
            return [call(x, weight, head_dim=64)]

        run, reference = partial(convolved, short_conv.short_conv), partial(convolved, short_conv.short_conv_in_torch)
        return Work(run, reference, leaves, (2 * 512 * N, 3 * 512 * N))
    if name in ("norm", "heads"):
        shape = (N, 1024) if name == "norm" else (N, 8, 64)
        leaves = {"x": drawn(*shape), "weight": drawn(shape[-1])}
        size = leaves["x"].numel()

        def normed(call: Callable[..., Any], x: Any, weight: Any) -> list[Any]:
            return [call(x, weight, 1e-5)]

        run, reference = partial(normed, rms_norm.rms_norm), partial(normed, rms_norm.rms_norm_reference)
        return Work(run, reference, leaves, (2 * size, 3 * size))
    if name == "swiglu":

        def gated(call: Callable[..., Any], gate: Any, up: Any) -> list[Any]:
            return [call(gate, up)]

        size, both = 3312 * N, drawn(N, 2 * 3312)
        leaves = {"gate": part(both, 0, 3312), "up": part(both, 3312, 3312)}
        run, reference = partial(gated, swiglu.swiglu), partial(gated, swiglu.swiglu_reference)
        return Work(run, reference, leaves, (3 * size, 5 * size))
    leaves = {"low": drawn(N, 64, grad=False), "up": drawn(2048, 64, grad=False)}
    return Work(
        lambda low, up: [expand.expand(low, up / 8, True)],
        lambda low, up: [F.linear(low, up / 8).sigmoid()],
        leaves,
        (2048 * N, 0),
    )


def errors(case: Case) -> dict[str, float]:
    """Return relative errors of results and gradients against plain torch in float32."""
    return errors_of(work_of(case, CHECKED_TOKENS))


def errors_of(work: Work) -> dict[str, float]:
    """Return the relative errors of some work."""
    import torch

    def results(call: Callable[..., list[Any]], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        x = {name: t.detach().to(dtype).requires_grad_(t.requires_grad) for name, t in work.leaves.items()}
        output, *others = call(**x)
        found = {"output": output.detach().float()}
        wanted = {name: t for name, t in x.items() if t.requires_grad}
        if wanted:
            weight = torch.linspace(-1, 1, output.numel(), device=output.device).sin().view(output.shape)
            loss = (output.float() * weight).sum() + sum(part.sum() for part in others)
            found |= dict(
                zip(wanted, (g.float() for g in torch.autograd.grad(loss, list(wanted.values()))), strict=True)
            )
        return found

    found, truth = results(work.function, torch.bfloat16), results(work.reference, torch.float32)
    return {name: ((found[name] - value).norm() / value.norm()).item() for name, value in truth.items()}


def times(case: Case) -> dict[str, float]:
    """Return the milliseconds of a forward, of a forward and backward, and of moving their bytes at a copy's speed."""
    import torch

    work = work_of(case)
    wanted = [t for t in work.leaves.values() if t.requires_grad]
    gradient = torch.randn_like(work.function(**work.leaves)[0])

    def forward() -> Any:
        return work.function(**work.leaves)[0]

    def both() -> None:
        output = forward()
        if wanted:
            torch.autograd.grad(output, wanted, gradient)

    def timed(call: Callable[[], object]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        found = []
        for _ in range(GROUPS):
            torch.cuda._sleep(BUSY)
            begin.record()
            for _ in range(CALLS):
                call()
            end.record()
            torch.cuda.synchronize()
            found.append(begin.elapsed_time(end) / CALLS)
        return median(found)

    both()
    both()
    found = {"forward": timed(forward), "both": timed(both)}
    if work.elements is not None:
        source = torch.empty(2**29, dtype=torch.bfloat16, device=gradient.device)
        copied = torch.empty_like(source)
        an_element = timed(lambda: copied.copy_(source)) / (2 * source.numel())
        found["forward at least"] = work.elements[0] * an_element
        found["both at least"] = sum(work.elements) * an_element
    return found


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


def in_short(case: str, ms: dict[str, float]) -> str:
    """Return the times of a case as they are printed."""
    least = f" (at least {ms['forward at least']:.3f} {ms['both at least']:.3f})" if "both at least" in ms else ""
    return f"{case} {ms['forward']:.3f} {ms['both']:.3f}{least}"


def main() -> None:
    """Check all trees at once, then time them in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "cases", nargs="+", metavar="CASE", help="VARIANT:B,T,H[,K,V], with :s for statistics, or PIECE:TOKENS"
    )
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
    try:
        checked = {tree: answers(process, given.cases) for tree, process in checks.items()}
    finally:
        for process in checks.values():
            process.kill()
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
            print(f"{tree}: forward, forward + backward: {', '.join(map(in_short, found, found.values()))}", flush=True)
    if given.out:
        errors_of = {str(tree): found for tree, found in checked.items()}
        given.out.write_text(json.dumps({"errors": errors_of, "turns": turns}, indent=1) + "\n")
    if len(right) < len(trees):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
