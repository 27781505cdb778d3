"""Benchmark of training the small models of the experiments: updates per second of one run and of several at once."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from swila.experiments import cdar, regbench, softmax_regression
from swila.experiments.loop import Trainer
from swila.experiments.training_run import TrainingRun
from swila.training import RunDirectory

CASES: dict[str, Callable[[], TrainingRun]] = {
    "cdar, paper": lambda: cdar.make_runs("paper", ["temporal-swila"], [64], [1], [1e-3], [0])[0],
    "cdar, small": lambda: cdar.make_runs("small", ["temporal-swila"], [64], [1], [1e-3], [0])[0],
    "softmax-regression, H1J2": lambda: softmax_regression.make_runs("small", ["swila"], [2], seeds=[0])[0],
    "regbench, small": lambda: regbench.make_runs("small", ["temporal-swila"], seeds=[0])[0],
}
# kinds of kernels by a pattern of their names; the first that matches counts
KINDS_OF_KERNELS = {
    "recurrence": r"^swila_",
    "loss of the logits": r"softmax",
    "gradient of the embedding": r"sum_and_scatter|segment_offset|grad_weight|radix_sort|RadixSort",
    "matrix products": r"nvjet|gemm|splitKreduce|cutlass",
    "optimizer": r"FusedOptimizer",
}


def measure(case: str, replicas: Sequence[int], seconds: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure the updates per second of one run without a captured graph, and of concurrent runs with graphs.

    Args:
        case: One of :data:`CASES`.
        replicas: Numbers of concurrent runs. A run alone is also profiled.
        seconds: Duration of each measurement.
        report: Function that is called with a description of the current work.
    """
    run = CASES[case]()
    run = replace(run, training=replace(run.training, steps=200_000, eval_every=200_000))
    with tempfile.TemporaryDirectory() as out:
        report(f"{case}: without a graph")
        plain = _rate([run], Path(out) / "plain", seconds, captured=False)
        found: dict[str, dict[str, float]] = {}
        for count in replicas:
            report(f"{case}: {count} concurrent")
            runs = [replace(run, training=replace(run.training, seed=seed)) for seed in range(count)]
            found[str(count)] = _rate(runs, Path(out) / str(count), seconds, captured=True)
        report(f"{case}: profile")
        spent = _profile(run, Path(out) / "profile")
    size = {"batch_size": run.training.batch_size, "precision": run.training.precision}
    return {"case": case, **size, "plain": plain, "captured": found, "microseconds": spent}


def _rate(runs: Sequence[TrainingRun], out: Path, seconds: float, captured: bool) -> dict[str, float]:
    """Return the updates per second of all runs together, and the loss of the first, the same in all modes."""
    trainers: list[Trainer] = []
    for run in runs:
        trainer = run.begin(RunDirectory(out / run.name, run.config()), "cuda", False)
        trainer.captured = captured
        trainers.append(trainer)
    try:
        for _ in range(2):  # compiles and captures, then runs once more
            for trainer in trainers:
                trainer.advance()
        torch.cuda.synchronize()
        first = trainers[0].session
        loss = first.updates.loss.item() / first.state.counted
        begun, before = time.perf_counter(), [trainer.session.state.step for trainer in trainers]
        while time.perf_counter() - begun < seconds:
            for trainer in trainers:
                trainer.advance()
            torch.cuda.synchronize()
        passed = time.perf_counter() - begun
        done = sum(trainer.session.state.step - step for trainer, step in zip(trainers, before, strict=True))
        return {"updates_per_s": done / passed, "loss": loss}
    finally:
        for trainer in trainers:
            trainer.close()


def _profile(run: TrainingRun, out: Path, turns: int = 2) -> dict[str, float]:
    """Return the microseconds per update of each kind of kernel, from torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    trainer = run.begin(RunDirectory(out, run.config()), "cuda", False)
    try:
        for _ in range(2):
            trainer.advance()
        torch.cuda.synchronize()
        before = trainer.session.state.step
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(turns):
                trainer.advance()
            torch.cuda.synchronize()
        updates = trainer.session.state.step - before
        spent: dict[str, float] = {}
        for event in profiler.key_averages():
            kinds = (kind for kind, pattern in KINDS_OF_KERNELS.items() if re.search(pattern, event.key))
            kind = next(kinds, "everything else, elementwise")
            spent[kind] = spent.get(kind, 0.0) + event.self_device_time_total / updates
        return dict(sorted(spent.items(), key=lambda item: -item[1]))
    finally:
        trainer.close()
