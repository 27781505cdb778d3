"""Tables of ``swila inspect``: what a trained memory does."""

from __future__ import annotations

from typing import Any

from tools.tables.conditions import conditions
from tools.tables.markdown import markdown

from swila.experiments.cdar.memory import MEASURED


def memory_table(record: dict[str, Any]) -> str:
    """Markdown for the results of ``swila inspect``."""
    groups = len(record["by_group"])
    rows = []
    for what, found in ({"nothing": record} | record["without_writes"]).items():
        rows.append((what, *(f"{value:.3f}" for value in (found["accuracy"], *found["by_group"]))))
    return markdown(
        "l" + "r" * (groups + 1),
        ["not written at", "accuracy", *(f"queries of context {i + 1}" for i in range(groups))],
        rows,
        f"{record['run']}, {record['examples']} test sequences; contexts in the order asked. {conditions(record)}.",
    )


def tokens_table(record: dict[str, Any]) -> str:
    """Markdown for the other half of them: what the layer does at each kind of token."""
    rows = [(kind, *(f"{values[name]:.3f}" for name in MEASURED)) for kind, values in record["tokens"].items()]
    return markdown("lrrrr", ["mean at tokens of a kind", *MEASURED.values()], rows)
