"""Tables of the recall experiments: the small one, the paper's size claim by claim, and what a memory does."""

from __future__ import annotations

from typing import Any

from swila.experiments.recall import CACHES, MODELS
from swila.tables.conditions import conditions
from swila.tables.experiments import CLAIM, under_which, verdict
from swila.tables.markdown import markdown

NEAR_PERFECT = 0.95


def small_table(record: dict[str, Any], longer: dict[str, Any] | None = None) -> str:
    """Markdown for the results of ``swila run cdar`` or ``mqar``, and what became of the models with more steps."""
    rows = []
    for row in record["rows"]:
        numbers = f"{row['state']:,}", f"{row['parameters']:,}", f"{row['best']:.3f}", f"{row['mean']:.3f}"
        rows.append((MODELS[row["model"]], *numbers, f"{row['solved']} of {row['runs']} seeds"))
    seconds = sum(result["seconds"] for result in record["runs"].values())
    plateau = f"1/C is {record['plateau']:.2f}. " if "plateau" in record else ""
    return markdown(
        "lrrrrr",
        ["model", "state", "parameters", "best accuracy", "mean", "solved"],
        rows,
        f"{plateau}The best test accuracy of each run; {seconds:.0f} s of training, summed over runs that go side by "
        f"side. {_later(longer) if longer else ''}{conditions(record)}.",
    )


def _later(record: dict[str, Any]) -> str:
    steps = max(result["steps"] for result in record["runs"].values())
    told = ", ".join(f"{MODELS[row['model']]} {row['best']:.2f} ({row['mean']:.2f})" for row in record["rows"])
    return f"With up to {steps:,} steps the best seeds (and the means) get to: {told}. "


def recall_table(record: dict[str, Any]) -> str:
    """Markdown for the results at the paper's size: a row for each model and depth, a column for each width."""
    rows = [row for row in record["rows"] if not row.get("variant")]
    widths = sorted({row["hidden_size"] for row in rows})
    states = {row["hidden_size"]: row["state"] for row in rows if row["model"] not in CACHES and row["layers"] == 1}
    headings = [f"d {width}" + (f", {_power(states[width])}" if width in states else "") for width in widths]
    found = {(row["model"], row["layers"], row["hidden_size"]): row for row in rows}
    lines = []
    for model, name in MODELS.items():
        for layers in sorted({layers for kind, layers, _ in found if kind == model}):
            cells = [_cell(found.get((model, layers, width)), record["runs"]) for width in widths]
            lines.append((name, str(layers), *cells))
    return markdown(
        "lr" + "l" * len(widths),
        ["model", "layers", *headings],
        lines,
        "Test accuracy: the best evaluation of the best run (how many runs, and their mean, if several). Attention has "
        f"a cache instead of a state, its size is in the cell. 1/C is {record['plateau']:.2f}. {under_which(record)}",
    )


def recall_claims(record: dict[str, Any]) -> str:
    """What the paper says of CDAR, and what these results say; near-perfect is :data:`NEAR_PERFECT`."""
    rows = [row for row in record["rows"] if row["best"] is not None and not row.get("variant")]
    recurrent = [row for row in rows if row["model"] not in CACHES and row["layers"] == 1]
    longest = max(run["planned_steps"] / run["steps_per_epoch"] for run in record["runs"].values())
    epochs = f"after up to {longest:.0f} of the paper's 50 epochs"
    claims = [
        (
            "Temporal SwiLA with one head of D = 32 and 4 mixtures (state $2^{12}$) is the smallest configuration with "
            "near-perfect accuracy.",
            _smallest(recurrent),
        ),
        (
            "All other recurrent models (nearly) solve the task with one layer as the state grows.",
            f"{_others(recurrent)}; {epochs}",
        ),
        (
            "The Transformer needs two layers.",
            f"{_depths([row for row in rows if row['model'] == 'attention'])}; {epochs}",
        ),
        ("The mean over learning rates shows the same.", _means(recurrent)),
    ]
    return markdown("ll", CLAIM, claims)


def memory_table(record: dict[str, Any]) -> str:
    """Markdown for the results of ``swila inspect``."""
    groups = len(record["by_group"])
    rows = []
    for what, found in ({"nothing": record} | record["without_writes"]).items():
        rows.append((what, *(f"{value:.3f}" for value in (found["accuracy"], *found["by_group"]))))
    kinds = ("context", "key", "value", "query", "empty place after a query")
    gates = "; ".join(
        f"{kind} {values['beta']:.2f}, {values['key_gate']:.3f}, {values['query_gate']:.3f}"
        for kind, values in ((kind, record["tokens"][kind]) for kind in kinds)
    )
    return markdown(
        "l" + "r" * (groups + 1),
        ["not written at", "accuracy", *(f"queries of context {i + 1}" for i in range(groups))],
        rows,
        f"{record['run']}, {record['examples']} test sequences; contexts in the order asked. Mean β and opening of the "
        f"key's and the query's gate: {gates}. {conditions(record)}.",
    )


def _power(state: int) -> str:
    return f"$2^{{{state.bit_length() - 1}}}$" if state & (state - 1) == 0 else f"{state:,}"


def _cell(row: dict[str, Any] | None, runs: dict[str, Any]) -> str:
    if row is None:
        return ""
    cache = f", cache {_power(row['state'])}" if row["model"] in CACHES else ""
    if row["best"] is None:
        begun = [runs[name]["curve"][-1] for name in row["not_over"] if runs[name]["curve"]]
        if not begun:
            return "not over" + cache
        step, score = max(begun)
        return f"not over; after {step:,} updates {score:.3f}{cache}"
    over = row["runs"] - len(row["not_over"])
    several = f" (×{over}, mean {row['mean']:.3f})" if over > 1 else ""
    best = f"**{row['best']:.3f}**" if row["best"] >= NEAR_PERFECT else f"{row['best']:.3f}"
    return best + several + cache


def _smallest(rows: list[dict[str, Any]]) -> str:
    solved = [row for row in rows if row["best"] >= NEAR_PERFECT]
    if not solved:
        return "**no**: none is near-perfect"
    smallest = min(row["state"] for row in solved)
    first = [row for row in solved if row["state"] == smallest]
    alone = [(row["model"], row["state"]) for row in first] == [("temporal-swila", 4096)]
    others = [row for row in rows if row["state"] <= 4096 and row not in first]
    return f"**{verdict(alone)}**: {_list(first)}; up to $2^{{12}}$ otherwise {_list(others)}"


def _others(rows: list[dict[str, Any]]) -> str:
    words = []
    for model in MODELS:
        own = [row for row in rows if row["model"] == model]
        if own and model != "temporal-swila":
            largest = max(own, key=lambda row: row["state"])
            words.append((largest["best"] >= NEAR_PERFECT, f"{MODELS[model]} {largest['best']:.3f}", largest["state"]))
    if not words:
        return "–"
    state = max(state for *_, state in words)
    told = ", ".join(word for _, word, _ in words)
    return f"**{verdict(all(solved for solved, *_ in words))}** up to {_power(state)}: {told}"


def _depths(rows: list[dict[str, Any]]) -> str:
    depths = {row["layers"] for row in rows}
    best = {layers: max(row["best"] for row in rows if row["layers"] == layers) for layers in depths}
    if not {1, 2} <= best.keys():
        return "–"
    so = best[2] >= NEAR_PERFECT > best[1]
    return f"**{verdict(so)}**: {best[1]:.3f} with one layer, {best[2]:.3f} with two"


def _means(rows: list[dict[str, Any]]) -> str:
    at = [row for row in rows if row["state"] == 4096]
    ordered = sorted(at, key=lambda row: -row["mean"])
    so = bool(ordered) and ordered[0]["model"] == "temporal-swila"
    told = ", ".join(f"{MODELS[row['model']]} {row['mean']:.3f}" for row in ordered)
    return f"**{verdict(so)}**, at $2^{{12}}$: {told}"


def _list(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{MODELS[row['model']]} at {_power(row['state'])} {row['best']:.3f}" for row in rows)
