"""Tables of the README and the docs, written from the results files between markers in the text."""

from __future__ import annotations

import json
from pathlib import Path

from tools.tables.cdar_memory import memory_table, tokens_table
from tools.tables.experiments import experiments_table, time_table
from tools.tables.generation import generation_table
from tools.tables.goals import goals_table
from tools.tables.headline import headline
from tools.tables.host_time import host_time_table
from tools.tables.operation import baseline_tables, op_table, ratio_table
from tools.tables.pretraining import (
    fla_table,
    initialization_table,
    plan_table,
    small_runs_table,
    start_table,
    throughput_table,
)
from tools.tables.provenance import check
from tools.tables.recall import epochs_table, rates_table, recall_table, settings_table, small_table
from tools.tables.recall_claims import recall_claims
from tools.tables.regbench import regbench_claims, regbench_table
from tools.tables.softmax_regression import regression_claims, regression_table
from tools.tables.throughput import (
    NOT_YET,
    generation_throughput_table,
    lanes_table,
    time_by_kind_table,
    training_table,
)

BEGIN, END = "<!-- {name}:begin -->", "<!-- {name}:end -->"


def tables(results: Path) -> dict[str, dict[str, str]]:
    """Return all tables: path of a document -> name of the markers -> table."""

    def load(name: str) -> dict:
        return json.loads((results / f"{name}.json").read_text())

    def load_if_measured(name: str) -> dict | None:
        return load(name) if (results / f"{name}.json").exists() else None

    op_cpu = [json.loads(path.read_text()) for path in sorted(results.glob("op-cpu*.json"))]
    op, generation = load("op-cuda"), load("generate-cuda")
    small, regression, regbench, cdar = (
        load(name) for name in ("cdar-tiny", "softmax-regression", "regbench", "cdar-paper")
    )
    return {
        "README.md": {
            "headline": headline(op, load("throughput-training"), generation, small),
            "run-cdar-tiny": small_table(small, load("cdar-tiny-long")),
            "bench-op-ratios": ratio_table(op),
        },
        "docs/benchmarks.md": {
            "bench-op-cuda": baseline_tables(op),
            "bench-op-cpu": op_table(op_cpu),
            "host-time": host_time_table(load("host-time")),
            "bench-generate": generation_table(generation),
            "bench-experiments": experiments_table(load("experiments-cuda")),
            "bench-experiments-paper": experiments_table(
                load("experiments-cuda-cdar"), load("experiments-cuda-cdar-before")
            ),
            "bench-experiments-time": time_table(load("experiments-cuda-cdar")),
        },
        "docs/experiments.md": {
            "run-mqar-tiny": small_table(load("mqar-tiny")),
            "run-cdar-settings": settings_table(load("cdar-tiny-settings")),
        },
        "docs/pretraining.md": {
            "pretraining-throughput": throughput_table(load("pretraining-cuda")),
            "pretraining-memory": plan_table(load("pretraining-cuda")),
            "pretraining-small": small_runs_table(load("pretraining-small")),
            "fla-gdn": fla_table(load("fla-gdn")),
            "initialization": start_table(load("fla-gdn")) + "\n\n" + initialization_table(load("initialization")),
        },
        "docs/performance.md": _performance(
            load("throughput-before"),
            *map(load_if_measured, ("throughput-training", "throughput-training-374m")),
            *map(load_if_measured, ("throughput-generation", "op-lanes")),
        ),
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


def _performance(
    before: dict, large: dict | None, medium: dict | None, generation: dict | None, lanes: dict | None
) -> dict[str, str]:
    """Return the tables of docs/performance.md; results that are not there yet are said to be missing."""
    figure = "images/throughput-{}.png".format
    return {
        "throughput-goals": goals_table(before, large, medium, generation, lanes),
        "throughput-training": training_table(large, figure("training")) if large else NOT_YET,
        "throughput-training-374m": training_table(medium) if medium else NOT_YET,
        "throughput-generation": generation_throughput_table(generation, figure("generation"))
        if generation
        else NOT_YET,
        "op-lanes": lanes_table(lanes, before) if lanes else NOT_YET,
        "throughput-time-374m": time_by_kind_table(medium, before) if medium else NOT_YET,
        "throughput-time": time_by_kind_table(large, before) if large else NOT_YET,
    }


def insert(text: str, name: str, table: str) -> str:
    """Return the text with the part between the markers of that name replaced by a table."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    head, rest = text.split(begin)
    return f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def update(root: Path) -> list[str]:
    """Check where the results come from, then rewrite the tables of the documents.

    Returns the messages of :func:`tools.tables.provenance.check`.
    """
    told = check(root)
    for name, found in tables(root / "results").items():
        document = root / name
        text = document.read_text()
        for marker, table in found.items():
            text = insert(text, marker, table)
        document.write_text(text)
    return told
