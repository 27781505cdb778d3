"""Tables for the README, made from results files: no number in the text that is not in one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    where, device = records[0]["environment"], records[0]["device"]
    same = {key: {str(record[key]) for record in records} for key in ("dtype", "device", "repeats")}
    assert all(len(values) == 1 for values in same.values()), f"one table, several conditions: {same}"
    machine = ", ".join(where["gpus"]) if device.startswith("cuda") else f"{where['cpu']} ({where['cores']} cores)"
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    lines += [
        "",
        f"{records[0]['dtype']}, {machine}, torch {where['torch']}, {packages}, Python {where['python']}, commit "
        f"`{where['commit']}`, medians of {records[0]['repeats']} turns. Memory is what a forward and backward take "
        "beyond the inputs, gradients included, over the bytes of the inputs and their gradients.",
    ]
    return "\n".join(lines)


def insert(text: str, name: str, table: str) -> str:
    """A text with what stands between the markers of that name replaced."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    head, rest = text.split(begin)
    return f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def update(readme: Path, results: Path) -> None:
    """Rewrite the tables of a README from the results files beside it."""
    records = [json.loads(path.read_text()) for path in sorted(results.glob("op-cpu*.json"))]
    readme.write_text(insert(readme.read_text(), "bench-op-cpu", op_table(records)))


if __name__ == "__main__":
    update(Path("README.md"), Path("results"))
