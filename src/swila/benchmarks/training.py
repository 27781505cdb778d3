"""Runs side by side on one GPU: how many updates a second, one after another and together."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from swila.experiments import cdar, regbench, softmax_regression
from swila.experiments.training_run import TrainingRun
from swila.training import RunDirectory, Trainer

CASES: dict[str, Callable[[], TrainingRun]] = {
    "cdar, small": lambda: cdar.make_runs("small", ["temporal-swila"], [64], [1], [1e-3], [0])[0],
    "softmax-regression, H1J2": lambda: softmax_regression.make_runs("small", ["swila"], [2], seeds=[0])[0],
    "regbench, small": lambda: regbench.make_runs("small", ["temporal-swila"], seeds=[0])[0],
}


def measure(case: str, replicas: Sequence[int], seconds: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Updates a second of one run without a captured graph, and of several runs side by side with theirs.

    Args:
        case: one of :data:`CASES`.
        replicas: how many side by side, in turn.
        seconds: how long each is measured.
        report: told what is being done.
    """
    run = CASES[case]()
    run = replace(run, training=replace(run.training, steps=200_000, eval_every=200_000))
    with tempfile.TemporaryDirectory() as out:
        report(f"{case}: without a graph")
        plain = _rate([run], Path(out) / "plain", seconds, captured=False)
        found: dict[str, dict[str, float]] = {}
        for count in replicas:
            report(f"{case}: {count} side by side")
            runs = [replace(run, training=replace(run.training, seed=seed)) for seed in range(count)]
            found[str(count)] = _rate(runs, Path(out) / str(count), seconds, captured=True)
    return {"case": case, "plain": plain, "captured": found}


def _rate(runs: Sequence[TrainingRun], out: Path, seconds: float, captured: bool) -> dict[str, float]:
    """Updates a second of all runs together, and the loss of the first one, which is to be the same in all ways."""
    trainers: list[Trainer] = []
    for run in runs:
        trainer = run.begin(RunDirectory(out / run.name, run.config()), "cuda", False)
        trainer.captured = captured
        trainers.append(trainer)
    try:
        for _ in range(2):  # compile, capture, and once more
            for trainer in trainers:
                trainer.advance()
        torch.cuda.synchronize()
        first = trainers[0].session
        loss = first.updates.loss.item() / first.state["counted"]
        begun, before = time.perf_counter(), [trainer.session.state["step"] for trainer in trainers]
        while time.perf_counter() - begun < seconds:
            for trainer in trainers:
                trainer.advance()
            torch.cuda.synchronize()
        passed = time.perf_counter() - begun
        done = sum(trainer.session.state["step"] - step for trainer, step in zip(trainers, before, strict=True))
        return {"updates_per_s": done / passed, "loss": loss}
    finally:
        for trainer in trainers:
            trainer.close()
