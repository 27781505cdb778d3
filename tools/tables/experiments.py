"""Tables of ``swila bench experiments``: updates per second, and where the time of an update goes."""

from __future__ import annotations

from typing import Any

from tools.tables.conditions import conditions
from tools.tables.markdown import markdown


def experiments_table(record: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """Markdown for updates per second, eager and captured, of one run and of several side by side.

    Args:
        record: The results.
        before: Results of an earlier commit, measured on the same machine.
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
    side_by_side = [f"captured, {n} runs" for n in replicas[1:]]
    return markdown(
        "l" + "r" * (len(replicas) + 3),
        ["experiment", "eager", "captured", *side_by_side, "captured / eager", "side by side / one run"],
        rows,
        f"Updates per second, summed over the runs of a column, measured for {record['seconds']:g} s each. "
        f"{_examples(record, before) if before else ''}The mean loss of the first updates differs from that of the "
        f"eager run by at most {max(off):.2%}. {conditions(record)}.",
    )


def _examples(record: dict[str, Any], before: dict[str, Any]) -> str:
    """Examples per second of the first case, and of all cases of the earlier commit."""

    def most(case: dict[str, Any]) -> str:
        rates = [way["updates_per_s"] * case["batch_size"] for way in case["captured"].values()]
        both = f" in one run and {max(rates):,.0f} side by side" if len(rates) > 1 else " in one run"
        return f"{rates[0]:,.0f}{both}"

    earlier = ", ".join(f"{most(case)} ({case['precision']})" for case in before["cases"])
    return f"Examples per second: {most(record['cases'][0])}; at the earlier commit {earlier}. "


def time_table(record: dict[str, Any]) -> str:
    """Markdown for the profiles in the results: microseconds of an update by kind of kernel."""
    rows = []
    for case in record["cases"]:
        total = sum(case["microseconds"].values())
        rows += [
            (case["case"], kind, f"{time:,.0f}", f"{time / total:.0%}") for kind, time in case["microseconds"].items()
        ]
    return markdown("llrr", ["experiment", "kernels", "µs per update", "share"], rows)
