"""Table of the host time of an eager call."""

from __future__ import annotations

from typing import Any

from tools.tables.conditions import conditions
from tools.tables.markdown import markdown


def host_time_table(record: dict[str, Any]) -> str:
    """Markdown for the results of ``tools/host_time.py``: this version of the package and the one before it."""
    rows = []
    for variant, times in record["microseconds"]["this"].items():
        before = record["microseconds"]["other"][variant]
        rows.append((variant, *(f"{before[name]:.0f} → {times[name]:.0f}" for name in times)))
    return markdown(
        "lrrr",
        ["variant", "forward without gradients, µs", "forward, µs", "forward + backward, µs"],
        rows,
        "Before → after the operators got an `autograd.Function` of their own. The backend computes nothing, and "
        "values are not checked. "
        f"Medians of {record['repeats']} processes, in turns, each with the fastest of ten batches of "
        f"{record['calls'] // 10} calls. {conditions(record)}.",
    )
