"""Run every CUDA kernel under compute-sanitizer: memcheck (bad accesses) and racecheck (hazards in shared memory).

    python tools/sanitize.py                      # both tools, every kernel
    python tools/sanitize.py --tool memcheck --call temporal

Needs an NVIDIA GPU and compute-sanitizer (part of the CUDA toolkit). Reports listed in EXPECTED are filtered, each with
its reason. The exit status is 1 if anything else is reported, a call is wrong, or a kernel is never launched.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

KERNELS = Path(__file__).parents[1] / "src/swila/ops/cuda/kernels"

# Name, dtype, variant, sizes, packed lengths; together they launch every kernel, in each precision it has.
CALLS = {
    "split": ("bfloat16", "plain", {"B": 1, "T": 37, "H": 2, "K": 64, "V": 64, "J": 4}, None),
    "split-temporal": ("bfloat16", "temporal", {"B": 1, "T": 37, "H": 1, "K": 32, "V": 32, "J": 2}, None),
    "pipelined": ("bfloat16", "temporal", {"B": 1, "T": 37, "H": 1, "K": 32, "V": 32, "J": 8}, None),
    "key-decay": ("bfloat16", "gated-temporal", {"B": 1, "T": 37, "H": 1, "K": 64, "V": 32, "J": 4}, None),
    "value-decay": ("float16", "post-decay-value-temporal", {"B": 1, "T": 20, "H": 1, "K": 16, "V": 32, "J": 3}, None),
    "head-decay": ("float32", "unnormalized-gated-temporal", {"B": 1, "T": 20, "H": 1, "K": 16, "V": 16, "J": 2}, None),
    "segments": ("float32", "gated", {"B": 1, "T": 530, "H": 1, "K": 16, "V": 16, "J": 2}, None),
    "packed": ("bfloat16", "temporal", {"H": 1, "K": 32, "V": 32, "J": 4}, [3, 1, 16, 17, 33]),
    "packed-key-decay": ("float32", "gated", {"H": 1, "K": 16, "V": 16, "J": 2}, [3, 1, 16, 17]),
}

# Tool, kernel, and why a report of the tool about that kernel alone is no defect.
EXPECTED = {
    ("racecheck", "forward_split"): (
        "its warps hand tiles to each other through named barriers, bar.arrive on one side and bar.sync on the other. "
        "racecheck does not order accesses by such a pair in a loop: it reports the same for the smallest loop of one "
        "producer and one consumer in which every write and read is ordered (results/kernels-log.json, "
        "racecheck_of_named_barriers). tools/races.py runs this kernel under ThreadSanitizer instead"
    ),
}
REPORT = re.compile(r"race reported|hazard|invalid|misaligned|out of bounds|uninitialized|error", re.IGNORECASE)


def run_call(name: str) -> None:
    """Run one call, forward, backward and a step, check the results, and print the kernels that were launched."""
    import torch

    from swila import switching_delta_rule_step
    from swila.ops.cuda import backend
    from swila.testing import VARIANTS, Shape, check_backend, make_call

    launched = set()
    launch = backend._kernels.launch

    class Recorder:
        blocks = staticmethod(launch.blocks)

        def __call__(self, kernel: str, *rest: object) -> None:
            launched.add(kernel)
            launch(kernel, *rest)

    backend._kernels.launch = Recorder()
    dtype, variant, sizes, lengths = CALLS[name]
    call = make_call(VARIANTS[variant], Shape(**sizes), dtype=getattr(torch, dtype), device="cuda", lengths=lengths)
    wrong = [str(check) for check in check_backend(call, "cuda") if not check.ok]
    if lengths is None:
        with torch.no_grad():
            token = {k: v[:, :1] if isinstance(v, torch.Tensor) else v for k, v in call.items()}
            switching_delta_rule_step(**token, backend="cuda")
            switching_delta_rule_step(**{**token, "initial_state": None}, backend="cuda")
            switching_delta_rule_step(**token, backend="cuda", inplace=True)
    torch.cuda.synchronize()
    print(json.dumps({"launched": sorted(launched), "wrong": wrong}))


def kernel_of(report: str) -> str | None:
    """The one kernel of ours that a report is about, or None."""
    kernels = set(re.findall(r"swila_(\w+?)(?=[(+\s.])", report))
    return kernels.pop() if len(kernels) == 1 else None


def reports(log: str) -> list[str]:
    """The blocks of compute-sanitizer's output that report something: hazards, bad accesses, errors."""
    found: list[list[str]] = []
    for line in log.splitlines():
        text = line.removeprefix("=========")
        if not line.startswith("=========") or re.search(r"COMPUTE-SANITIZER|SUMMARY", text):
            continue
        if not text.startswith("     ") and REPORT.search(text):
            found.append([])
        if found:
            found[-1].append(text.strip())
    return ["\n".join(lines) for lines in found]


def sanitize(tool: str, name: str) -> tuple[set[str], list[str], int]:
    """Run a call under a tool; return the kernels it launched, the reports left, and how many were filtered."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [compute_sanitizer(), "--tool", tool, "--log-file", str(log), "--kernel-name", "kns=swila_"]
        # cuda-bindings asks the driver for functions of every version: not finding one is no error
        command += ["--racecheck-report", "analysis"] if tool == "racecheck" else ["--report-api-errors", "no"]
        # every tensor in an allocation of its own, so that memcheck sees an access past the end of any
        surroundings = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        command += [sys.executable, __file__, "--run", name]
        done = subprocess.run(command, capture_output=True, text=True, env=surroundings)
        text = log.read_text() if log.exists() else ""
    if done.returncode or not done.stdout.strip():
        return set(), [f"the call did not finish: {done.stderr[-2000:]}{text[-2000:]}"], 0
    told = json.loads(done.stdout.strip().splitlines()[-1])
    found = reports(text)
    unexpected = [report for report in found if (tool, kernel_of(report)) not in EXPECTED]
    filtered = len(found) - len(unexpected)
    summary = re.findall(r"SUMMARY: (\d+)", text)
    if not summary:
        unexpected.append(f"{tool} gave no summary: {text[-500:]}")
    elif int(summary[-1]) and not found:
        unexpected.append(f"{tool} counts {summary[-1]} reports of a form not known here:\n{text[-2000:]}")
    return set(told["launched"]), [*unexpected, *told["wrong"]], filtered


def compute_sanitizer() -> str:
    """Where the program is."""
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(found).exists():
        sys.exit("compute-sanitizer must be on PATH: it is part of the CUDA toolkit")
    return found


def main() -> None:
    """Parse the arguments, run what they ask for, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", choices=["memcheck", "racecheck"], action="append", help="default: both")
    parser.add_argument("--call", choices=list(CALLS), action="append", help="default: all")
    parser.add_argument("--jobs", type=int, default=6, help="calls at a time, default 6")
    parser.add_argument("--run", choices=list(CALLS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        run_call(given.run)
        return
    failed = False
    for tool in given.tool or ["memcheck", "racecheck"]:
        launched: set[str] = set()
        names = given.call or list(CALLS)
        with ThreadPoolExecutor(given.jobs) as pool:
            results = list(pool.map(partial(sanitize, tool), names))
        for name, (kernels, left, filtered) in zip(names, results, strict=True):
            launched |= kernels
            failed |= bool(left)
            note = f", {filtered} expected reports filtered" if filtered else ""
            verdict = "REPORTS" if left else "clean"
            print(f"{tool} {name} ({', '.join(sorted(kernels))}): {verdict}{note}", flush=True)
            for report in left:
                print(report, flush=True)
        missing = {path.stem for path in KERNELS.glob("*.cu")} - launched
        if missing and not given.call:
            failed = True
            print(f"{tool}: never launched: {', '.join(sorted(missing))}")
    for (tool, kernel), reason in EXPECTED.items():
        print(f"filtered: reports of {tool} about {kernel} alone, because {reason}.")
    sys.exit(failed)


if __name__ == "__main__":
    main()
