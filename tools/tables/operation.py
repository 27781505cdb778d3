"""Tables of ``swila bench op``: backends on a CPU, and the kernels beside flash-linear-attention's on a GPU."""

from __future__ import annotations

import re
from typing import Any

from tools.tables.conditions import conditions
from tools.tables.markdown import markdown
from tools.tables.wording import listed, span

from swila.benchmarks.baselines import OURS, cells, pairs
from swila.testing import VARIANTS

MEASURES = {"forward_ms": "forward time", "total_ms": "forward + backward time", "peak_bytes": "peak memory"}
TIMING_HEADINGS = (
    "shape",
    "operation",
    "forward ms",
    "forward / time to move inputs and output once",
    "forward + backward ms",
    "forward + backward / time to move inputs, output and gradients once",
    "peak GB",
    "saved for backward / inputs",
)


def op_table(records: list[dict[str, Any]]) -> str:
    """Markdown for the results of ``swila bench op`` on a CPU: a row for each variant, shape and backend."""
    records = sorted(
        records, key=lambda record: (record["shape"]["T"], list(VARIANTS).index(record["variant"]["name"]))
    )
    same = {key: {str(record[key]) for record in records} for key in ("dtype", "device", "repeats")}
    assert all(len(values) == 1 for values in same.values()), f"one table, several conditions: {same}"
    found = []
    for record in records:
        shape = " ".join(f"{name}{size}" for name, size in record["shape"].items())
        rows = [row for row in record["rows"] if row["total_ms"] is not None]
        for row in sorted(rows, key=lambda row: row["total_ms"]):
            memory = row["peak_bytes"] / record["bytes_of_inputs_and_gradients"]
            times = f"{row['forward_ms']:.0f}", f"{row['total_ms']:.0f}", f"{row['times_faster']:.1f}"
            found.append((record["variant"]["name"], shape, f"`{row['backend']}`", *times, f"{memory:.2f}"))
    return markdown(
        "lllrrrr",
        ["variant", "shape", "backend", "forward ms", "forward + backward ms", "speedup", "peak memory ratio"],
        found,
        f"{records[0]['dtype']}, medians of {records[0]['repeats']} repetitions. The speedup is that of forward + "
        "backward over the slowest backend for the same variant and shape. The peak memory ratio is the memory that "
        "forward + backward allocate beyond the inputs (gradients included), divided by the size of the inputs and "
        f"their gradients. {conditions(records[0])}.",
    )


def ratio_table(record: dict[str, Any]) -> str:
    """Markdown for the ratios of our kernels to each baseline's, as a range over all shapes."""
    rows = []
    for name, *ratios in pairs(record):
        rows.append((name, *(_range(cell) for cell in ratios)))
    return markdown(
        "lrrr",
        ["SwiLA / baseline", *MEASURES.values()],
        rows,
        f"Below 1, SwiLA takes less; above 1 (bold), it takes more. Ranges are over {len(record['shapes'])} shapes "
        f"({listed(_shapes(record))}). {_setting(record)} {conditions(record, packages=['flash-linear-attention'])}.",
    )


def baseline_tables(record: dict[str, Any]) -> str:
    """Markdown for every ratio of our kernels to a baseline's, shape by shape, then the measurements themselves."""
    shapes = _shapes(record)
    measured = [
        (shape, *cells(timing))
        for shape, found in zip(shapes, record["shapes"], strict=True)
        for timing in found["timings"]
        if timing["total_ms"] is not None
    ]
    step, size = record["decode"], record["decode"]["shape"]
    note = (
        f"{_setting(record)} All operations were timed in one process, taking turns; times are medians of "
        f"{record['repeats']} repetitions. {_checked(record)} The time to move tensors once is their size over the "
        "bandwidth of a large copy on the same GPU; for forward + backward it counts the inputs twice. Peak memory is "
        "what forward + backward allocate beyond the inputs. What is saved for backward includes the inputs. A decode "
        f"step in place (B{size['B']} H{size['H']}, plain) takes {step['ms'] * 1e3:.0f} µs, {step['ratio']:.2f} times "
        f"the time to read and write the state once. {conditions(record)}."
    )
    return "\n\n".join(
        [
            markdown(
                "lrrr",
                ["SwiLA / baseline", *MEASURES.values()],
                pairs(record),
                f"Ratios at {' / '.join(shapes)}. Below 1, SwiLA takes less; above 1 (bold), it takes more.",
            ),
            markdown("ll" + "r" * (len(TIMING_HEADINGS) - 2), TIMING_HEADINGS, measured, note),
        ]
    )


def total_ratios(record: dict[str, Any], ours: str, baseline: str) -> list[float]:
    """Forward + backward time of one of our variants over that of a baseline, at each shape."""
    by_shape = [{timing["name"]: timing["total_ms"] for timing in found["timings"]} for found in record["shapes"]]
    return [times[ours] / times[baseline] for times in by_shape]


def _shapes(record: dict[str, Any]) -> list[str]:
    return [" ".join(f"{name}{found['shape'][name]}" for name in "BTH") for found in record["shapes"]]


def _range(cell: str) -> str:
    """``0.54–0.55`` for the ratios of all shapes, bold if one of them is above 1; ``–`` if one is missing."""
    ratios = [ratio.strip("*") for ratio in cell.split(" / ")]
    if "–" in ratios:
        return "–"
    found = span(map(float, ratios), ".2f")
    return f"**{found}**" if "**" in cell else found


def _setting(record: dict[str, Any]) -> str:
    """What was compared: variants, sizes, dtype, and how large the states are."""
    size = record["shapes"][0]["shape"]
    J, K, V = size["J"], size["K"], size["V"]
    width = round((J * K * V) ** 0.5)
    return (
        f"SwiLA has K = {K}, V = {V} and J = {J}; gated means a decay per key dim. The baselines Gated DeltaNet (GDN), "
        f"DeltaNet and KDA are flash-linear-attention's kernels with head dim {width}. q, k and v are bfloat16. Both "
        f"states have {J * K * V:,} scalars per head; temporal SwiLA also carries r and ρ, {J * V} scalars each per "
        f"head ({2 / K:.1%} more)."
    )


def _checked(record: dict[str, Any]) -> str:
    """Which baselines' results were checked before timing, and that the refusal of GDN's backward was lifted."""
    errors: dict[str, float | None] = {}
    for found in record["shapes"]:
        for timing in found["timings"]:
            if timing["name"] not in OURS:
                error = max(timing.get("errors", {}).values(), default=None)
                known = errors.get(timing["name"], 0.0)
                errors[timing["name"]] = None if error is None or known is None else max(known, error)
    told = [f"{name} {error:.0e}" for name, error in errors.items() if error is not None]
    missing = [name for name, error in errors.items() if error is None]
    words = "Before timing, SwiLA's results were checked on a short sequence against the token loop in float64"
    words += f", and so were the baselines' (largest relative errors: {', '.join(told)})." if told else "."
    if missing:
        words += f" The results of {listed(missing)} were not checked."
    return f"{words} {_overridden(record)}" if "GDN" in errors and _overridden(record) else words


def _overridden(record: dict[str, Any]) -> str:
    """That flash-linear-attention refuses GDN's backward with this triton, and why lifting the refusal is sound."""
    triton = record["environment"]["packages"].get("triton", "")
    version = tuple(int(part) for part in re.findall(r"\d+", triton)[:3])
    if not (3, 4, 0) <= version < (3, 7, 1):
        return ""
    return (
        f"With triton {triton}, flash-linear-attention refuses GDN's backward on Hopper GPUs (`chunk_bwd_dqkwg`; its "
        "issue 640: wrong gradients of β and of the decay with triton 3.4.0 up to, but not including, 3.7.1). The "
        "benchmark lifts the refusal: the error occurs with key blocks of 64, and head dim 128 uses blocks of 128."
    )
