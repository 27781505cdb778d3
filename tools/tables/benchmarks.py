"""Tables of what ``swila bench`` measured."""

from __future__ import annotations

import re
from typing import Any

from tools.tables.conditions import conditions
from tools.tables.markdown import markdown
from tools.tables.wording import listed

from swila.benchmarks.baselines import HEADINGS, MEASURES, OURS, cells, pairs
from swila.testing import VARIANTS


def op_table(records: list[dict[str, Any]]) -> str:
    """Markdown for results of ``swila bench op``, with where they were measured."""
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
        ["variant", "shape", "backend", "forward ms", "forward + backward ms", "× slowest of the run", "memory"],
        found,
        f"{records[0]['dtype']}, {conditions(records[0])}, medians of {records[0]['repeats']} turns. Memory is what a "
        "forward and backward take beyond the inputs, gradients included, over the bytes of the inputs and their "
        "gradients.",
    )


def baseline_tables(record: dict[str, Any]) -> str:
    """Markdown for results of ``swila bench op`` on a GPU: every pair of ours and theirs, then the measurements."""
    shapes = [" ".join(f"{name}{found['shape'][name]}" for name in "BTH") for found in record["shapes"]]
    measured = [
        (shape, *cells(timing))
        for shape, found in zip(shapes, record["shapes"], strict=True)
        for timing in found["timings"]
        if timing["total_ms"] is not None
    ]
    step, size = record["decode"], record["decode"]["shape"]
    note = (
        f"SwiLA with K, V 64 and J 4 (plain, temporal, and gated: a decay per key dim) beside flash-linear-attention's "
        f"kernels with heads of 128. {_state(record)} bfloat16, in one run, medians of {record['repeats']} turns. "
        f"{_checked(record)} × bytes is the time over that of moving inputs, outputs and gradients once, as fast as a "
        f"copy; peak is what a forward and backward take beyond the inputs; kept is for the backward, inputs counted "
        f"in. The decoding step, in place at B{size['B']} H{size['H']}, takes {step['ms'] * 1e3:.0f} µs, "
        f"{step['ratio']:.2f} times reading and writing the state once. {conditions(record)}."
    )
    return "\n\n".join(
        [
            markdown(
                "lrrr",
                ["SwiLA / baseline", *MEASURES.values()],
                pairs(record),
                f"Ratios at {' / '.join(shapes)}: under 1 SwiLA takes less; where it takes more, they are bold.",
            ),
            markdown("ll" + "r" * (len(HEADINGS) - 1), ["shape", *HEADINGS], measured, note),
        ]
    )


def _state(record: dict[str, Any]) -> str:
    """How large the states are, and what temporal priors carry beside them."""
    size = record["shapes"][0]["shape"]
    J, K, V = size["J"], size["K"], size["V"]
    return (
        f"Their state is a matrix of as many scalars as SwiLA's, {J * K * V:,} a head; temporal SwiLA carries r and ρ "
        f"as well, {J * V} scalars each a head, {2 / K:.1%} more in all."
    )


def _checked(record: dict[str, Any]) -> str:
    """Which baselines' results were checked before they were timed; and what is to be said of GDN's backward."""
    errors: dict[str, float | None] = {}
    for found in record["shapes"]:
        for timing in found["timings"]:
            if timing["name"] not in OURS:
                error = max(timing.get("errors", {}).values(), default=None)
                known = errors.get(timing["name"], 0.0)
                errors[timing["name"]] = None if error is None or known is None else max(known, error)
    told = [f"{name} to {error:.0e}" for name, error in errors.items() if error is not None]
    missing = [name for name, error in errors.items() if error is None]
    words = "Before timing, SwiLA's results were checked on a short sequence against the specification in float64"
    words += f", and so were the baselines' (largest relative error: {', '.join(told)})." if told else "."
    if missing:
        words += f" The results of {listed(missing)} were not checked."
    return f"{words} {_overridden(record)}" if "GDN" in errors and _overridden(record) else words


def _overridden(record: dict[str, Any]) -> str:
    """Where flash-linear-attention refuses GDN's backward: that the refusal is lifted, and why that is sound."""
    triton = record["environment"]["packages"].get("triton", "")
    version = tuple(int(part) for part in re.findall(r"\d+", triton)[:3])
    if not (3, 4, 0) <= version < (3, 7, 1):
        return ""
    return (
        "flash-linear-attention refuses GDN's backward on Hopper GPUs with triton from 3.4.0 to before 3.7.1 "
        f"(`chunk_bwd_dqkwg`; its issue 640: wrong gradients of β and of the decay), and this was triton {triton}: the "
        "benchmark lifts the refusal. The fault shows with key blocks of 64, and heads of 128 are computed in blocks "
        "of 128."
    )


def training_table(record: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """Markdown for results of ``swila bench training``: updates a second, of one run and of several together.

    ``before`` are those of an earlier commit, measured on the same machine.
    """
    replicas = list(record["cases"][0]["captured"])
    rows, off = [], []
    for which in (record, before) if before else (record,):
        for case in which["cases"]:
            plain, ways = case["plain"], case["captured"]
            rates = {n: way["updates_per_s"] for n, way in ways.items()}
            alone, most = rates[replicas[0]], max(rates.values())
            numbers = (f"{rate:,.0f}" if rate else "" for rate in (plain["updates_per_s"], *map(rates.get, replicas)))
            gains = f"{alone / plain['updates_per_s']:.1f}", f"{most / alone:.2f}" if len(rates) > 1 else ""
            commit = f", {case['precision']}, commit `{which['environment']['commit'][:7]}`" if before else ""
            rows.append((case["case"] + commit, *numbers, *gains))
            off += [abs(way["loss"] / plain["loss"] - 1) for way in ways.values()]
    side_by_side = [f"{n} side by side" for n in replicas[1:]]
    return markdown(
        "l" + "r" * (len(replicas) + 3),
        ["updates a second", "as torch runs it", "captured", *side_by_side, "captured, times", "side by side, times"],
        rows,
        f"All runs of a column together, {record['seconds']:g} s each. "
        f"{_examples(record, before) if before else ''}The mean loss of the first updates is within "
        f"{max(off):.2%} of that of torch. {conditions(record)}.",
    )


def _examples(record: dict[str, Any], before: dict[str, Any]) -> str:
    """Examples a second of the first case, and of all that were measured before."""

    def most(case: dict[str, Any]) -> str:
        rates = [way["updates_per_s"] * case["batch_size"] for way in case["captured"].values()]
        both = f" alone and {max(rates):,.0f} side by side" if len(rates) > 1 else " alone"
        return f"{rates[0]:,.0f}{both}"

    earlier = ", ".join(f"{most(case)} ({case['precision']})" for case in before["cases"])
    return f"Examples a second: {most(record['cases'][0])}; at the older commit {earlier}. "


def time_table(record: dict[str, Any]) -> str:
    """Markdown for the profiles in results of ``swila bench training``: where the time of an update goes."""
    rows = []
    for case in record["cases"]:
        total = sum(case["microseconds"].values())
        rows += [
            (case["case"], kind, f"{time:,.0f}", f"{time / total:.0%}") for kind, time in case["microseconds"].items()
        ]
    return markdown("llrr", ["", "kernels", "microseconds of an update", "share"], rows)


def generation_table(record: dict[str, Any]) -> str:
    """Markdown for results of ``swila bench generate``: the time of a token, and how many times less it is."""
    ways = list(record["timings"][0]["token_ms"])
    rows = []
    for row in record["timings"]:
        times = [row["token_ms"][way] for way in ways]
        faster = row["token_ms"]["transformers"] / min(times)
        numbers = [f"{row['prefill_ms']:.0f}", *(f"{time:.2f}" for time in times), f"{faster:.0f}"]
        rows.append((row["model"], str(row["batch"]), *numbers))
    text = record["long"]
    assert text["same"]
    return markdown(
        "lrr" + "r" * (len(ways) + 1),
        ["model", "batch", "prompt", *(way.removeprefix("swila, ") for way in ways), "times faster"],
        rows,
        f"Milliseconds to read the prompts, then for each token. Random weights in {record['dtype']}, prompts of "
        f"{record['prompt']:,} tokens, {record['new']} new ones, "
        f"medians of {record['repeats']} turns; times faster is the best of the two ways over transformers' own loop, "
        f"on the same model. {text['model']} read a text of {text['tokens']:,} tokens in {text['read_s']:.1f} s; its "
        f"state was saved to a file of {text['file_bytes'] / 1e6:.1f} MB, and continued from the file bit for bit. "
        f"{conditions(record)}.",
    )
