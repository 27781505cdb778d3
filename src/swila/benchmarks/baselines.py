"""Benchmark of the operation on a GPU against flash-linear-attention's kernels on a state of the same size."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from swila.benchmarks.op import verdict
from swila.layers import fla
from swila.layers.delta_rule import delta_rule
from swila.ops import SwitchingState, switching_delta_rule, switching_delta_rule_step
from swila.ops.backends import get_backend
from swila.testing import VARIANTS, Shape, Variant

SHAPES = tuple(
    Shape(B=B, T=T, H=H, K=64, V=64, J=4) for B, T, H in ((16, 4096, 8), (32, 4096, 16), (64, 2048, 16), (8, 16384, 16))
)
# few heads in all (batch x heads), where a head's sequence is what takes the time
FEW_LANES = tuple(
    Shape(B=B, T=T, H=H, K=64, V=64, J=4)
    for B, T, H in ((16, 4096, 8), (8, 4096, 8), (4, 4096, 8), (1, 4096, 8), (2, 16384, 16), (1, 65536, 8))
)
OURS = {"plain": VARIANTS["plain"], "temporal": VARIANTS["temporal"], "gated": VARIANTS["gated"]}
BASELINES = ("GDN", "DeltaNet", "KDA")
DECODE = Shape(B=128, T=1, H=16, K=64, V=64, J=4)


@dataclass
class Timing:
    """Measurements of one variant of ours or one baseline.

    Attributes:
        name: Name of the variant or baseline.
        forward_ms: Time of a forward.
        total_ms: Time of a forward + backward.
        peak_bytes: Peak memory of a forward + backward, beyond the inputs.
        kept_ratio: Bytes kept for the backward, inputs included, relative to the inputs.
        floor_ms: Time to move inputs and output once.
        total_floor_ms: Time to move the inputs twice, the output, its gradient and the gradients of the inputs.
        refused: Why it was not timed, or None.
        errors: Relative errors of the output and each gradient, measured before timing.
        turns: Times of all measurements.
    """

    name: str
    forward_ms: float | None = None
    total_ms: float | None = None
    peak_bytes: int | None = None
    kept_ratio: float | None = None
    floor_ms: float | None = None
    total_floor_ms: float | None = None
    refused: str | None = None
    errors: dict[str, float] = field(default_factory=dict)
    turns: list[tuple[float, float]] = field(default_factory=list)


def inputs_of(variant: Variant, shape: Shape, device: str, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Return random inputs of a variant, drawn on the device."""
    generator = torch.Generator(device=device).manual_seed(0)

    def normal(*last: int) -> Tensor:
        size = (shape.B, shape.T, shape.H, *last)
        return torch.randn(size, generator=generator, device=device, dtype=dtype)

    K, V, J = shape.K, shape.V, shape.J
    call = {
        "q": F.normalize(normal(K), dim=-1), "k": F.normalize(normal(K), dim=-1), "v": normal(V),
        "beta": normal(J, V).sigmoid(), "key_logits": normal(J, V), "query_logits": normal(J, V),
    }  # fmt: skip
    if variant.decay == "key":
        call["log_decay"] = F.logsigmoid(normal(J, 1, K) + 2)
    if variant.key_temporal:
        call["key_gate"], call["query_gate"] = normal(V).sigmoid(), normal(V).sigmoid()
    return {name: t.requires_grad_() for name, t in call.items()}


def baseline_inputs(name: str, shape: Shape, device: str) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    """Return the operation of a baseline and its inputs; heads of 128 have the state size of J = 4 and heads of 64."""
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda

    B, T, H = shape.B, shape.T, shape.H
    D = round((shape.K * shape.V * shape.J) ** 0.5)
    generator = torch.Generator(device=device).manual_seed(0)

    def normal(*last: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn((B, T, H, *last), generator=generator, device=device, dtype=dtype)

    call = {"q": F.normalize(normal(D), dim=-1), "k": F.normalize(normal(D), dim=-1), "v": normal(D)}
    call["beta"] = normal().sigmoid()
    if name != "DeltaNet":
        call["g"] = F.logsigmoid(normal(*[D] * (name == "KDA"), dtype=torch.float32) + 2)
    operation = {"DeltaNet": chunk_delta_rule, "GDN": chunk_gated_delta_rule, "KDA": chunk_kda}[name]
    return (lambda **x: operation(**x)[0]), {key: t.requires_grad_() for key, t in call.items()}


BASELINE_ERRORS = {"d g": 0.1}  # the gradient of the decay is a difference of rounded sums
BASELINE_ERROR = 0.02  # a few rounding errors of bfloat16
CHECKED_TOKENS = 140  # two chunks of 64 tokens and a partial one


def baseline_errors(name: str, shape: Shape, device: str) -> dict[str, float]:
    """Return the relative errors of a baseline's output and gradients against the token loop in float64.

    With J = 1 our reference is that of the baseline, whose ``scale`` multiplies the queries. The sequence is short:
    call the baseline at the timed shape first, or autotuning by the size of the heads would use these few tokens.
    """
    operation, call = baseline_inputs(name, replace(shape, B=1, T=CHECKED_TOKENS), device)
    output = operation(**call)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(output.shape, generator=generator).to(output)
    found = [output, *torch.autograd.grad(output, list(call.values()), weight)]
    x = {key: t.detach().double().cpu().requires_grad_() for key, t in call.items()}
    q = x["q"] * x["q"].shape[-1] ** -0.5
    truth, _ = delta_rule(q, x["k"], x["v"], x["beta"], x.get("g"), backend="reference")
    expected = [truth, *torch.autograd.grad(truth, list(x.values()), weight.double().cpu())]
    names = ["output", *(f"d {key}" for key in call)]
    compared = zip(names, found, expected, strict=True)
    return {what: ((a.double().cpu() - b).norm() / b.norm()).item() for what, a, b in compared}


def baseline_refused(errors: dict[str, float]) -> str | None:
    """Return why a baseline with these errors is not timed, or None."""
    wrong = [
        f"{name} off by {e:.1e}" for name, e in errors.items() if not e <= BASELINE_ERRORS.get(name, BASELINE_ERROR)
    ]
    return f"wrong: {', '.join(wrong)}" if wrong else None


@contextmanager
def gdn_backward_allowed() -> Iterator[None]:
    """Allow GDN's backward on Hopper, which flash-linear-attention refuses with some versions of triton.

    With triton from 3.4.0 and below 3.7.1 it raises, because gradients were wrong with tiles of 64 key dims (its issue
    640). Heads of 128 have tiles of 128, whose gradients :func:`baseline_errors` checks before they are timed.
    """
    from fla.ops.common import chunk_o

    before = chunk_o.TRITON_ABOVE_3_7_1
    chunk_o.TRITON_ABOVE_3_7_1 = True
    try:
        yield
    finally:
        chunk_o.TRITON_ABOVE_3_7_1 = before


def milliseconds(work: Callable[[], object], times: int = 5) -> float:
    """Return the device time of some work: the median of several launches, with the host ahead of the device."""
    events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(times)]
    torch.cuda._sleep(60_000_000)  # keeps the device busy while the host launches the work
    for start, end in events:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in events)


def copy_bandwidth(device: str) -> float:
    """Return the bandwidth of a large copy in bytes per millisecond, reads and writes counted."""
    x = torch.empty(1 << 31, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    for _ in range(3):
        y.copy_(x)
    return 2 * x.numel() / milliseconds(lambda: y.copy_(x), 20)


def _size(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def time_in_turns(
    shape: Shape,
    device: str,
    repeats: int,
    bandwidth: float,
    baselines: tuple[str, ...] = BASELINES,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Timing]:
    """Time all variants and baselines at one shape, in turns."""
    timings: list[Timing] = []
    work: list[tuple[Timing, Callable[[], Tensor], list[Tensor], Tensor]] = []
    for name, variant in OURS.items():
        progress(f"{shape}: checking {name}")
        refused, _, _, errors = verdict(get_backend("cuda"), shape, variant, torch.bfloat16, device)
        timing = Timing(name, refused=refused, errors=errors)
        timings.append(timing)
        if refused is None:
            call = inputs_of(variant, shape, device)
            work.append(_prepared(timing, partial(switching_delta_rule, backend="cuda"), call, bandwidth))
    for name in baselines if fla.unusable() is None else ():
        progress(f"{shape}: warming up and checking {name}, whose first autotuning takes minutes")
        timing = Timing(name)
        timings.append(timing)
        try:
            prepared = _prepared(timing, *baseline_inputs(name, shape, device), bandwidth)
            timing.errors = baseline_errors(name, shape, device)
            timing.refused = baseline_refused(timing.errors)
        except Exception as crash:
            timing.refused = f"crashed: {type(crash).__name__}: {crash}"
        if timing.refused is None:
            work.append(prepared)
    for turn in range(repeats + 1):
        for timing, forward, leaves, weight in work:
            progress(f"{shape}: timing {timing.name}, turn {turn} of {repeats}")
            with torch.no_grad():
                alone = milliseconds(forward)
            total = milliseconds(partial(_forward_and_backward, forward, leaves, weight))
            if turn:  # the first is a warm-up
                timing.turns.append((alone, total))
    for timing, *_ in work:
        timing.forward_ms = median(alone for alone, _ in timing.turns)
        timing.total_ms = median(total for _, total in timing.turns)
    return timings


def _forward_and_backward(forward: Callable[[], Tensor], leaves: list[Tensor], weight: Tensor) -> None:
    torch.autograd.grad(forward(), leaves, weight)


def _prepared(
    timing: Timing, operation: Callable[..., Any], call: dict[str, Tensor], bandwidth: float
) -> tuple[Timing, Callable[[], Tensor], list[Tensor], Tensor]:
    def forward() -> Tensor:
        found = operation(**call)
        return found if isinstance(found, Tensor) else found.output

    leaves = list(call.values())
    kept: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        kept[t.data_ptr()] = _size([t])
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        output = forward()
    weight = torch.randn_like(output)
    inputs = _size(leaves)
    timing.kept_ratio = sum(kept.values()) / inputs
    timing.floor_ms = (inputs + _size([output])) / bandwidth
    timing.total_floor_ms = (3 * inputs + 2 * _size([output])) / bandwidth
    torch.autograd.grad(output, leaves, weight)
    del output
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _forward_and_backward(forward, leaves, weight)
    torch.cuda.synchronize()
    timing.peak_bytes = torch.cuda.max_memory_allocated() - before
    return timing, forward, leaves, weight


def decode(device: str, repeats: int, bandwidth: float) -> dict[str, float]:
    """Time a decode step in place, replayed from a CUDA graph, against reading and writing the state once."""
    call: dict[str, Any] = {name: t.detach() for name, t in inputs_of(VARIANTS["plain"], DECODE, device).items()}
    B, H, J, V, K = DECODE.B, DECODE.H, DECODE.J, DECODE.V, DECODE.K
    state = SwitchingState(torch.randn(B, H, J, V, K, device=device))

    def step() -> None:
        switching_delta_rule_step(**call, initial_state=state, backend="cuda", inplace=True)

    with torch.no_grad():
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                step()
    graph.replay()
    found = milliseconds(graph.replay, 10 * repeats) / 10
    floor = 2 * _size([state.W]) / bandwidth
    return {"ms": found, "floor_ms": floor, "ratio": found / floor}


HEADINGS = ("", "forward ms", "/ copy", "forward + backward ms", "/ copy", "peak GB", "saved / inputs")


def cells(timing: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a table with these headings, from the record of a timing."""
    return (
        timing["name"], f"{timing['forward_ms']:.2f}", f"{timing['forward_ms'] / timing['floor_ms']:.1f}",
        f"{timing['total_ms']:.2f}", f"{timing['total_ms'] / timing['total_floor_ms']:.1f}",
        f"{timing['peak_bytes'] / 1e9:.2f}", f"{timing['kept_ratio']:.2f}",
    )  # fmt: skip


MEASURES = {"forward_ms": "forward, time", "total_ms": "forward + backward, time", "peak_bytes": "peak memory"}


def pairs(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for every variant of ours and every baseline: the ratios of their times and memory at each shape.

    Ratios above 1, where ours takes more, are between double asterisks.
    """
    names = [timing["name"] for timing in record["shapes"][0]["timings"]]
    by_shape = [{timing["name"]: timing for timing in found["timings"]} for found in record["shapes"]]
    rows = []
    for ours in (name for name in names if name in OURS):
        for theirs in (name for name in names if name not in OURS):
            ratios = [[_over(found, ours, theirs, what) for found in by_shape] for what in MEASURES]
            rows.append((f"{ours} / {theirs}", *(" / ".join(values) for values in ratios)))
    return rows


def _over(timings: dict[str, dict[str, Any]], ours: str, theirs: str, what: str) -> str:
    mine, other = (timings.get(name, {}).get(what) for name in (ours, theirs))
    if mine is None or other is None:
        return "–"
    ratio = f"{mine / other:.2f}"
    return f"**{ratio}**" if float(ratio) > 1 else ratio


def benchmark(
    shapes: tuple[Shape, ...],
    device: str,
    repeats: int,
    progress: Callable[[str], None] = lambda text: None,
    save: Callable[[dict[str, Any]], None] = lambda record: None,
    baselines: tuple[str, ...] = BASELINES,
) -> dict[str, Any]:
    """Run the whole benchmark and return its record; ``save`` is called with the record so far after each shape."""
    bandwidth = copy_bandwidth(device)
    record: dict[str, Any] = {"copy_bytes_per_ms": bandwidth, "shapes": []}
    progress("timing the decode step")
    record["decode"] = {"shape": asdict(DECODE), **decode(device, repeats, bandwidth)}
    with gdn_backward_allowed() if fla.unusable() is None else _nothing():
        for shape in shapes:
            timings = time_in_turns(shape, device, repeats, bandwidth, baselines, progress)
            record["shapes"].append({"shape": asdict(shape), "timings": [asdict(timing) for timing in timings]})
            save(record)
            gc.collect()
            torch.cuda.empty_cache()
    return record


@contextmanager
def _nothing() -> Iterator[None]:
    yield
