"""Tables of ``swila inspect``: writes, gates and accuracy of a trained model, by kind of token."""

from __future__ import annotations

from typing import Any

from tools.tables.conditions import conditions
from tools.tables.markdown import markdown

from swila.experiments.cdar.memory import MEASURED


def memory_table(record: dict[str, Any]) -> str:
    """Markdown for the accuracy without the writes at one kind of token, by context."""
    groups = len(record["by_group"])
    rows = []
    for what, found in ({"nothing": record} | record["without_writes"]).items():
        rows.append((what, *(f"{value:.3f}" for value in (found["accuracy"], *found["by_group"]))))
    return markdown(
        "l" + "r" * (groups + 1),
        ["writes removed at", "accuracy", *(f"queries of context {i + 1}" for i in range(groups))],
        rows,
        f"{record['run']}, {record['examples']} test sequences; contexts in the order of their queries. "
        f"{conditions(record)}.",
    )


def tokens_table(record: dict[str, Any]) -> str:
    """Markdown for the means of learning rates, gates and values at each kind of token."""
    rows = [(kind, *(f"{values[name]:.3f}" for name in MEASURED)) for kind, values in record["tokens"].items()]
    return markdown("lrrrr", ["mean at", *MEASURED.values()], rows)
