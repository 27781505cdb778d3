"""Tables of what ``swila bench`` measured."""

from __future__ import annotations

from typing import Any

from swila.benchmarks.rivals import HEADINGS, cells
from swila.tables.conditions import conditions
from swila.tables.markdown import markdown
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


def rivals_tables(record: dict[str, Any]) -> str:
    """Markdown for results of ``swila bench op`` on a GPU: ratios of times, then the times."""
    shapes = [" ".join(f"{name}{found['shape'][name]}" for name in "BTH") for found in record["shapes"]]
    by_what: dict[str, list[str]] = {}
    for ratio in record["ratios"]:
        by_what.setdefault(ratio["what"], []).append(f"{ratio['value']:.2f}")
    ratios = [(what, *values) for what, values in by_what.items()]
    times = [
        (shape, *cells(timing))
        for shape, found in zip(shapes, record["shapes"], strict=True)
        for timing in found["timings"]
    ]
    step, size = record["decode"], record["decode"]["shape"]
    note = (
        f"SwiLA with K, V 64 and J 4 (plain, temporal, and gated: a decay per key dim) beside "
        f"flash-linear-attention's kernels with heads of 128, a state of the same size; bfloat16, in one run, medians "
        f"of {record['repeats']} turns. × bytes is the time over that of moving inputs, outputs and gradients once, as "
        f"fast as a copy; kept is for the backward, inputs counted in. The decoding step, in place at B{size['B']} "
        f"H{size['H']}, takes {step['ms'] * 1e3:.0f} µs, {step['ratio']:.2f} times reading and writing the state once. "
        f"{conditions(record)}."
    )
    return "\n\n".join(
        [
            markdown("l" + "r" * len(shapes), ["time over time", *shapes], ratios),
            markdown("ll" + "r" * (len(HEADINGS) - 1), ["shape", *HEADINGS], times, note),
        ]
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
