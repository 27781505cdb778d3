"""Tables for the README, made from results files: no number in the text that is not in one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swila.benchmarks.rivals import HEADINGS, cells
from swila.experiments.cdar import MODELS
from swila.testing import VARIANTS

BEGIN, END = "<!-- {name}:begin -->", "<!-- {name}:end -->"


def op_table(records: list[dict[str, Any]]) -> str:
    """Markdown for results of ``swila bench op``, with where they were measured."""
    records = sorted(
        records, key=lambda record: (record["shape"]["T"], list(VARIANTS).index(record["variant"]["name"]))
    )
    lines = [
        "| variant | shape | backend | forward ms | forward + backward ms | × slowest of the run | memory |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for record in records:
        shape = " ".join(f"{name}{size}" for name, size in record["shape"].items())
        rows = [row for row in record["rows"] if row["total_ms"] is not None]
        for row in sorted(rows, key=lambda row: row["total_ms"]):
            memory = row["peak_bytes"] / record["bytes_of_inputs_and_gradients"]
            lines.append(
                f"| {record['variant']['name']} | {shape} | `{row['backend']}` | {row['forward_ms']:.0f} | "
                f"{row['total_ms']:.0f} | {row['times_faster']:.1f} | {memory:.2f} |"
            )
    same = {key: {str(record[key]) for record in records} for key in ("dtype", "device", "repeats")}
    assert all(len(values) == 1 for values in same.values()), f"one table, several conditions: {same}"
    lines += [
        "",
        f"{records[0]['dtype']}, {conditions(records[0])}, medians of {records[0]['repeats']} turns. Memory is what a "
        "forward and backward take beyond the inputs, gradients included, over the bytes of the inputs and their "
        "gradients.",
    ]
    return "\n".join(lines)


def rivals_tables(record: dict[str, Any]) -> str:
    """Markdown for results of ``swila bench op`` on a GPU: ratios of times, then the times."""
    shapes = [" ".join(f"{name}{found['shape'][name]}" for name in "BTH") for found in record["shapes"]]
    by_what: dict[str, list[str]] = {}
    for ratio in record["ratios"]:
        by_what.setdefault(ratio["what"], []).append(f"{ratio['value']:.2f}")
    lines = ["| time over time | " + " | ".join(shapes) + " |", "|---|" + "---:|" * len(shapes)]
    lines += [f"| {what} | " + " | ".join(values) + " |" for what, values in by_what.items()]
    lines += [
        "",
        "| shape | " + " | ".join(HEADINGS) + " |",
        "|---|---|" + "---:|" * (len(HEADINGS) - 1),
    ]
    for shape, found in zip(shapes, record["shapes"], strict=True):
        lines += [f"| {shape} | " + " | ".join(cells(timing)) + " |" for timing in found["timings"]]
    step, size = record["decode"], record["decode"]["shape"]
    lines += [
        "",
        f"SwiLA with K, V 64 and J 4 (plain, temporal, and gated: a decay per key dim) beside "
        f"flash-linear-attention's kernels with heads of 128, a state of the same size; bfloat16, in one run, medians "
        f"of {record['repeats']} turns. × bytes is the time over that of moving inputs, outputs and gradients once, as "
        f"fast as a copy; kept is for the backward, inputs counted in. The decoding step, in place at B{size['B']} "
        f"H{size['H']}, takes {step['ms'] * 1e3:.0f} µs, {step['ratio']:.2f} times reading and writing the state once. "
        f"{conditions(record)}.",
    ]
    return "\n".join(lines)


def cdar_table(record: dict[str, Any], longer: dict[str, Any]) -> str:
    """Markdown for the results of ``swila run cdar``, and what became of its models with more steps."""
    lines = [
        "| model | state | parameters | best accuracy | mean | solved |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        lines.append(
            f"| {MODELS[row['model']]} | {row['state']:,} | {row['parameters']:,} | {row['best']:.3f} | "
            f"{row['mean']:.3f} | {row['solved']} of {row['runs']} seeds |"
        )
    seconds = sum(result["seconds"] for result in record["runs"].values())
    summed = f"{seconds:.0f} s of training, summed over runs that go side by side"
    steps = max(result["steps"] for result in longer["runs"].values())
    later = ", ".join(f"{MODELS[row['model']]} {row['best']:.2f} ({row['mean']:.2f})" for row in longer["rows"])
    lines += [
        "",
        f"1/C is {record['plateau']:.2f}. The best test accuracy of each run; {summed}. With up to {steps:,} steps the "
        f"best seeds (and the means) get to: {later}. {conditions(record)}.",
    ]
    return "\n".join(lines)


def generation_table(record: dict[str, Any]) -> str:
    """Markdown for results of ``swila bench generate``: the time of a token, and how many times less it is."""
    ways = list(record["timings"][0]["token_ms"])
    lines = [
        "| model | batch | prompt | " + " | ".join(way.removeprefix("swila, ") for way in ways) + " | times faster |",
        "|---|---:|---:|" + "---:|" * (len(ways) + 1),
    ]
    for row in record["timings"]:
        times = [row["token_ms"][way] for way in ways]
        faster = row["token_ms"]["transformers"] / min(times)
        cells = [f"{time:.2f}" for time in times]
        lines.append(
            f"| {row['model']} | {row['batch']} | {row['prefill_ms']:.0f} | {' | '.join(cells)} | {faster:.0f} |"
        )
    text = record["long"]
    assert text["same"]
    lines += [
        "",
        f"Milliseconds to read the prompts, then for each token. Random weights in {record['dtype']}, prompts of "
        f"{record['prompt']:,} tokens, {record['new']} new ones, "
        f"medians of {record['repeats']} turns; times faster is the best of the two ways over transformers' own loop, "
        f"on the same model. {text['model']} read a text of {text['tokens']:,} tokens in {text['read_s']:.1f} s; its "
        f"state was saved to a file of {text['file_bytes'] / 1e6:.1f} MB, and continued from the file bit for bit. "
        f"{conditions(record)}.",
    ]
    return "\n".join(lines)


def conditions(record: dict[str, Any]) -> str:
    """Where results were measured: hardware, versions, commit."""
    where = record["environment"]
    on_gpu = record["device"].startswith("cuda")
    machine = ", ".join(where["gpus"]) if on_gpu else f"{where['cpu']} ({where['cores']} cores)"
    packages = "".join(f", {name} {version}" for name, version in where["packages"].items())
    return f"{machine}, torch {where['torch']}{packages}, Python {where['python']}, commit `{where['commit']}`"


def tables(results: Path) -> dict[str, str]:
    """All tables of the README, by the name of their markers."""
    op = [json.loads(path.read_text()) for path in sorted(results.glob("op-cpu*.json"))]
    cdar, longer = (json.loads((results / f"cdar-tiny{suffix}.json").read_text()) for suffix in ("", "-long"))
    rivals, generation = (json.loads((results / f"{name}-cuda.json").read_text()) for name in ("op", "generate"))
    return {
        "bench-op-cpu": op_table(op),
        "bench-op-cuda": rivals_tables(rivals),
        "bench-generate": generation_table(generation),
        "run-cdar-tiny": cdar_table(cdar, longer),
    }


def insert(text: str, name: str, table: str) -> str:
    """A text with what stands between the markers of that name replaced."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    head, rest = text.split(begin)
    return f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def update(readme: Path, results: Path) -> None:
    """Rewrite the tables of a README from the results files beside it."""
    text = readme.read_text()
    for name, table in tables(results).items():
        text = insert(text, name, table)
    readme.write_text(text)


if __name__ == "__main__":
    update(Path("README.md"), Path("results"))
