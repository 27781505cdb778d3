"""Tables for the README and the docs, made from results files: no number in the text that is not in one of them."""

from __future__ import annotations

import json
from pathlib import Path

from tools.tables.benchmarks import baseline_tables, generation_table, op_table, time_table, training_table
from tools.tables.cdar_memory import memory_table, tokens_table
from tools.tables.provenance import check
from tools.tables.recall import epochs_table, rates_table, recall_table, settings_table, small_table
from tools.tables.recall_claims import recall_claims
from tools.tables.regbench import regbench_claims, regbench_table
from tools.tables.softmax_regression import regression_claims, regression_table

BEGIN, END = "<!-- {name}:begin -->", "<!-- {name}:end -->"


def tables(results: Path) -> dict[str, dict[str, str]]:
    """All tables: document, from the repository's root -> name of the markers -> table."""

    def load(name: str) -> dict:
        return json.loads((results / f"{name}.json").read_text())

    op = [json.loads(path.read_text()) for path in sorted(results.glob("op-cpu*.json"))]
    regression, regbench, cdar = load("softmax-regression"), load("regbench"), load("cdar-paper")
    return {
        "README.md": {
            "bench-op-cpu": op_table(op),
            "bench-op-cuda": baseline_tables(load("op-cuda")),
            "bench-generate": generation_table(load("generate-cuda")),
            "run-cdar-tiny": small_table(load("cdar-tiny"), load("cdar-tiny-long")),
        },
        "docs/experiments.md": {
            "bench-training": training_table(load("training-cuda")),
            "bench-training-paper": training_table(load("training-cuda-cdar"), load("training-cuda-cdar-before")),
            "bench-training-time": time_table(load("training-cuda-cdar")),
            "run-mqar-tiny": small_table(load("mqar-tiny")),
            "run-cdar-settings": settings_table(load("cdar-tiny-settings")),
        },
        "docs/reproduction.md": {
            "softmax-regression-claims": regression_claims(regression),
            "softmax-regression": regression_table(regression),
            "regbench-claims": regbench_claims(regbench),
            "regbench": regbench_table(regbench),
            "cdar-claims": recall_claims(cdar, load("cdar-paper-long"), load("cdar-paper-settings")),
            "cdar": recall_table(cdar),
            "cdar-rates": rates_table(cdar),
            "cdar-settings": epochs_table(load("cdar-paper-settings")),
            "cdar-small": recall_table(load("cdar-tiny-sizes")),
            "cdar-memory": memory_table(load("cdar-memory")),
            "cdar-tokens": tokens_table(load("cdar-memory")),
        },
    }


def insert(text: str, name: str, table: str) -> str:
    """A text with what stands between the markers of that name replaced."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    head, rest = text.split(begin)
    return f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def update(root: Path) -> list[str]:
    """Rewrite the tables of the documents from the results beside them, once these are known to be what they say.

    Returns what :func:`tools.tables.provenance.check` has to tell.
    """
    told = check(root)
    for name, found in tables(root / "results").items():
        document = root / name
        text = document.read_text()
        for marker, table in found.items():
            text = insert(text, marker, table)
        document.write_text(text)
    return told
