"""Benchmark of the operation's backends: each is checked first, then all are timed in turns."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swila.ops import switching_delta_rule
from swila.ops.backends import Backend, all_backends, get_backend, why_not
from swila.testing import Shape, Variant, check_backend, make_call, problem_of
from swila.testing.checks import leaves

QUICK_SECONDS = 1.0
CHECKED_TOKENS = 80  # two and a half chunks, which covers all cases


class Row(NamedTuple):
    """Result of one backend, without times if it was refused; ``times_faster`` is relative to the slowest backend."""

    backend: str
    refused: str | None
    wrong: bool
    worst_check: str | None
    forward_ms: float | None = None
    total_ms: float | None = None
    total_ms_all: list[float] | None = None
    times_faster: float | None = None
    peak_bytes: int | None = None


def benchmark(
    shape: Shape,
    variant: Variant,
    dtype: torch.dtype,
    device: str,
    names: list[str] | None = None,
    repeats: int = 5,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Check every backend against the reference, then time forward and forward + backward of the correct ones.

    The backends take turns within each repeat, in a rotating order, so that a slow phase of the machine affects all
    alike; times are medians. A fast backend runs once untimed before each measurement, because a backend that uses
    gigabytes disturbs the caches and the allocator for the next. Peak memory is that of one forward + backward, without
    the memory in use before it.

    Args:
        shape: Sizes of the call.
        variant: Variant of the recurrence.
        dtype: Dtype of the inputs.
        device: Device of the inputs.
        names: Names of the backends; by default all that are usable.
        repeats: Number of measurements of each backend.
        progress: Function that is called with a description of the current work.
    """
    call = make_call(variant, shape, dtype=dtype, device=device, initial_state=False)
    rows: list[Row] = []
    right: list[str] = []
    for backend in [get_backend(name) for name in names] if names else list(all_backends()):
        progress(f"checking {backend.name}")
        if backend.unusable() and not names:
            continue
        reason, wrong, worst, _ = verdict(backend, shape, variant, dtype, device)
        rows.append(Row(backend.name, reason, wrong, worst))
        if reason is None:
            right.append(backend.name)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in right}
    peaks = {}
    for name in right:
        progress(f"warming up {name}")
        peaks[name] = peak_memory(partial(run, call, name), device)
    for repeat in range(repeats):
        for name in right[repeat % max(len(right), 1) :] + right[: repeat % max(len(right), 1)]:
            progress(f"timing {name}, {repeat + 1} of {repeats}")
            if times[name] == [] or times[name][-1][1] < QUICK_SECONDS:
                run(call, name)
            times[name].append(run(call, name))
    totals = {name: [1e3 * total for _, total in turns] for name, turns in times.items()}
    slowest = max((median(all_turns) for all_turns in totals.values()), default=0.0)
    return [
        row
        if row.refused
        else row._replace(
            forward_ms=1e3 * median(forward for forward, _ in times[row.backend]),
            total_ms=median(totals[row.backend]),
            total_ms_all=totals[row.backend],
            times_faster=slowest / median(totals[row.backend]),
            peak_bytes=peaks[row.backend],
        )
        for row in rows
    ]


def verdict(
    backend: Backend, shape: Shape, variant: Variant, dtype: torch.dtype, device: str
) -> tuple[str | None, bool, str | None, dict[str, float]]:
    """Return why a backend is not timed or None, whether its numbers are wrong, its worst check and all errors."""
    call = make_call(variant, replace(shape, B=1, T=min(shape.T, CHECKED_TOKENS)), dtype=dtype, device=device)
    if reason := why_not(backend, problem_of(call)):
        return reason, False, None, {}
    try:
        # Without routing statistics, as in the timed calls: kernels take another path with them.
        checks = check_backend(call, backend.name, statistics=False)
    except Exception as crash:
        return f"crashed: {type(crash).__name__}: {crash}", True, None, {}
    worst = max(checks, key=lambda check: check.severity)
    errors = {check.name: check.error for check in checks}
    return (None if worst.ok else f"wrong: {worst}"), not worst.ok, str(worst), errors


def run(call: dict[str, Any], backend: str) -> tuple[float, float]:
    """Return the seconds of a forward, and of a forward + backward."""
    inputs = list(leaves(call).values())
    start = now(inputs)
    output = switching_delta_rule(**call, backend=backend).output
    middle = now(inputs)
    torch.autograd.grad(output, inputs, torch.ones_like(output))
    return middle - start, now(inputs) - start


def now(tensors: list[Tensor]) -> float:
    """Return the time after all work of the device is done."""
    if tensors[0].is_cuda:
        torch.cuda.synchronize(tensors[0].device)
    return time.perf_counter()


def peak_memory(work: Callable[[], object], device: str) -> int | None:
    """Return the peak memory of some work in bytes, beyond that in use before; None if it cannot be measured."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        ctypes.CDLL(None).malloc_trim(0)  # return freed memory to the system: its reuse would not be counted
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = _resident("VmRSS")
        work()
        return _resident("VmHWM") - before
    except (OSError, AttributeError):
        work()
        return None


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def input_bytes(shape: Shape, variant: Variant, dtype: torch.dtype) -> int:
    """Return the number of bytes of the inputs of a call and their gradients."""
    call = make_call(variant, replace(shape, B=1, T=1), dtype=dtype, initial_state=False)
    return 2 * shape.T * shape.B * sum(t.numel() * t.element_size() for t in leaves(call).values())
