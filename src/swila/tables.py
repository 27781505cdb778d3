"""Tables for the README, made from results files: no number in the text that is not in one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    return {"bench-op-cpu": op_table(op), "run-cdar-tiny": cdar_table(cdar, longer)}


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
