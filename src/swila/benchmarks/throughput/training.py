"""Figure S3: complete training updates of whole models, at several lengths with the same number of tokens."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swila.benchmarks.baselines import gdn_backward_allowed
from swila.benchmarks.throughput.attention import choose, preferring
from swila.benchmarks.throughput.checks import timed_model, why_refused
from swila.benchmarks.throughput.contenders import BASELINE, kernel_of, loss_of, products_of
from swila.benchmarks.throughput.kernels import profiled
from swila.benchmarks.throughput.memory import forget_peak, free, in_short, out_of_memory, peak_bytes, synchronize
from swila.benchmarks.throughput.results import Results
from swila.layers import fla
from swila.training.compilation import compiling

LENGTHS = (2048, 4096, 8192, 16384)
TOKENS = 131_072
WARM_UP, UPDATES = 3, 3
KEYS = ("model", "length", "batch", "compiled")  # that tell the rows of a results file apart


class Case(NamedTuple):
    """A model at one length.

    Attributes:
        model: Architecture, one of :data:`~swila.benchmarks.throughput.contenders.MODELS`, or a baseline.
        length: Tokens of a sequence, T.
        batch: Sequences of an update.
        compiled: Whether the blocks are compiled.
    """

    model: str
    length: int
    batch: int
    compiled: bool


class Setting(NamedTuple):
    """What all cases share.

    Attributes:
        size: Size of the presets.
        device: Device of the models.
        dtype: Dtype of the weights.
        warm_up: Number of updates before the timed ones.
        updates: Number of timed updates.
        profile: Whether to profile an update of each case.
        micro_tokens: Number of tokens of the largest micro-batch to try, or None for the whole batch.
    """

    size: str
    device: str
    dtype: torch.dtype
    warm_up: int = WARM_UP
    updates: int = UPDATES
    profile: bool = False
    micro_tokens: int | None = None


class Refused(Exception):
    """A model whose numbers are wrong."""


def benchmark(
    cases: Sequence[Case], setting: Setting, results: Results, report: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Measure the cases that the results do not have yet, and return the new rows.

    A micro-batch that does not fit is halved, and gradients are accumulated. A case that does not fit at all, a model
    with wrong numbers and an error are rows that say so; the cases after them are measured all the same.

    Args:
        cases: What to measure.
        setting: What all cases share.
        results: Where rows go, after each case.
        report: Function that is called with a description of the current work.
    """
    new = []
    with gdn_backward_allowed() if fla.unusable() is None else nullcontext():
        for case in cases:
            if results.has(**case._asdict()):
                continue
            row = run(case, setting, results, report)
            results.add(row)
            new.append(row)
    return new


def run(case: Case, setting: Setting, results: Results, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the row of a case, with the largest micro-batch that fits."""
    kernel = kernel_of(case.model)
    row = {**case._asdict(), "kernel": kernel, "micro_batch": None, "status": "out of memory", "reason": None}
    micro = _first_micro_batch(case, setting, results)
    while micro >= 1:
        report(f"{case.model}, T {case.length:,}: {case.batch} sequences, {micro} at a time")
        try:
            return row | {"micro_batch": micro, "status": "timed"} | measure(case, micro, setting, results, report)
        except Refused as refused:
            return row | {"status": "refused", "reason": str(refused)}
        except Exception as error:
            if not out_of_memory(error):
                return row | {"status": "failed", "reason": in_short(error)}
            row["reason"] = f"{micro} of {case.length:,} tokens: {in_short(error)}"
        finally:  # after the except clause, with which the frames of the error are gone
            free(setting.device)
        micro //= 2
    return row


def _first_micro_batch(case: Case, setting: Setting, results: Results) -> int:
    """Return the batch, or as many sequences as had room in a case of the same model: memory follows the tokens."""
    limits = [case.batch * case.length] + [n for n in (setting.micro_tokens,) if n is not None]
    for row in results.record["rows"]:
        same = row["model"] == case.model and row["compiled"] == case.compiled and row["status"] == "timed"
        if same and row["micro_batch"] < row["batch"]:
            limits.append(row["micro_batch"] * row["length"])
    return max(1, min(limits) // case.length)


def measure(
    case: Case, micro_batch: int, setting: Setting, results: Results, report: Callable[[str], None]
) -> dict[str, Any]:
    """Return throughput and peak memory of a case with micro-batches of this size; raises if it does not fit.

    The model is checked after the warm-up, because flash-linear-attention tunes its kernels in their first calls: with
    the few tokens of a check they would be tuned for these.
    """
    device = setting.device
    model = timed_model(case.model, setting.size, device, setting.dtype, case.compiled)
    attention = choose(model, micro_batch, case.length, backward=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=device.startswith("cuda"))
    shape, generator = (case.batch, case.length), torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, shape, generator=generator).to(device)

    def once() -> Tensor:
        with products_of(case.model), preferring(attention):
            return update(model, optimizer, tokens, micro_batch)

    losses = [once() for _ in range(setting.warm_up)]
    check(case, setting, results, report)
    report(f"{case.model}, T {case.length:,}: timing")
    synchronize(device)
    forget_peak(device)
    times = []
    for _ in range(setting.updates):
        began = time.perf_counter()
        losses.append(once())
        synchronize(device)
        times.append(time.perf_counter() - began)
    mean = sum(times) / len(times)
    found: dict[str, Any] = {
        "tokens_per_second": tokens.numel() / mean,
        "update_ms": 1e3 * mean,
        "turns_ms": [1e3 * each for each in times],
        "peak_bytes": peak_bytes(device),
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": torch.stack(losses).tolist(),
        "attention": attention,
    }
    if setting.profile and device.startswith("cuda"):
        report(f"{case.model}, T {case.length:,}: profile")
        found["profile"] = profiled(once)
    return found


def update(model: Any, optimizer: torch.optim.Optimizer, tokens: Tensor, micro_batch: int) -> Tensor:
    """Run a training update: forward, loss and backward of each micro-batch, clipping, AdamW. Returns the mean loss."""
    total = tokens.new_zeros((), dtype=torch.float32)
    for part in tokens.split(micro_batch):
        with compiling():
            loss = loss_of(model, part) * (len(part) / len(tokens))
            loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def check(case: Case, setting: Setting, results: Results, report: Callable[[str], None]) -> None:
    """Raise Refused if a model is wrong. The result is kept with the rows: sources are the same in a later process."""
    checks = results.record.setdefault("checks", {})
    name = f"{case.model}, {'compiled' if case.compiled else 'eager'}"
    if name not in checks:
        report(f"{case.model}: checking")
        reason, errors = why_refused(case.model, setting.size, setting.device, setting.dtype, case.compiled)
        checks[name] = {"reason": reason, "errors": errors}
        results.save()
        gc.collect()  # the models of the check must not count as memory of the timed one
    if (reason := checks[name]["reason"]) is not None:
        raise Refused(reason)


def ratio(results: dict[str, Any], row: dict[str, Any], field: str, baseline: str = BASELINE) -> float | None:
    """Return a field of a row over that of a baseline at the same length and batch, or None without either."""
    for other in results["rows"]:
        same = (other["length"], other["batch"]) == (row["length"], row["batch"])
        if other["model"] == baseline and same and other.get(field) and row.get(field):
            return row[field] / other[field]
    return None
