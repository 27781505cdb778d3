"""Tables of ``swila run regbench``: the results, and the paper's claims."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from swila.experiments import regbench
from swila.tables.conditions import under_which
from swila.tables.markdown import markdown
from swila.tables.wording import CLAIM, apart, of_seeds, verdict


def regbench_table(record: dict[str, Any]) -> str:
    """Markdown for the results of ``swila run regbench``: a row for each model, a column for each training set."""
    sizes = sorted({row["train_examples"] for row in record["rows"]})
    rows = []
    for model, name in regbench.MODELS.items():
        found = {row["train_examples"]: row for row in record["rows"] if row["model"] == model}
        if found:
            parameters = next(iter(found.values()))["parameters"]
            rows.append((name, f"{parameters:,}", *(_accuracy(found.get(size), record["runs"]) for size in sizes)))
    for name, score in record["yardsticks"].items():
        rows.append((f"*{name}*", "", *[f"*{score['accuracy']:.3f}*, TV *{score['tv']:.3f}*"] * len(sizes)))
    return markdown(
        "lr" + "l" * len(sizes),
        ["model", "parameters", *(f"{size:,} automata" for size in sizes)],
        rows,
        "Test accuracy, means over seeds (lowest–highest; × how many), then total variation and the epoch of the "
        f"chosen weights. {under_which(record)}",
    )


def regbench_claims(record: dict[str, Any]) -> str:
    """What the paper says of RegBench, and what these results say."""
    rows = {(row["model"], row["train_examples"]): row for row in record["rows"] if row["mean"] is not None}
    sizes = sorted({size for _, size in rows})
    transformer = {size: rows["attention", size] for size in sizes if ("attention", size) in rows}
    first, largest = transformer.get(1000), sizes[-1]

    def against(model: str) -> str:
        row = rows.get((model, 1000))
        if row is None or first is None:
            return f"{regbench.MODELS[model]} –"
        return f"**{verdict(apart(row, first))}**, {regbench.MODELS[model]} {of_seeds(row['scores'])}"

    with_largest = [
        f"{name} {rows[model, largest]['mean']:.3f}"
        for model, name in regbench.MODELS.items()
        if (model, largest) in rows
    ]
    claims = [
        (
            "With 1,000 training automata Temporal SwiLA and DN-MoM are above the Transformer.",
            f"{against('temporal-swila')}; {against('dn-mom')}; "
            f"Transformer {of_seeds(first['scores']) if first else '–'}",
        ),
        (
            "The Transformer improves steeply with more data, and is the best in the end.",
            "Transformer " + ", ".join(f"{row['mean']:.3f} with {size:,}" for size, row in transformer.items()),
        ),
        (
            "At scale all are similar, DeltaNet slightly trailing (40,000).",
            ("" if largest >= 40_000 else "not run at that scale; ") + f"with {largest:,}: {', '.join(with_largest)}",
        ),
    ]
    return markdown("ll", CLAIM, claims)


def _accuracy(row: dict[str, Any] | None, runs: dict[str, Any]) -> str:
    if row is None:
        return "not run"
    if row["mean"] is None:
        begun = [runs[name] for name in row["not_over"] if runs[name]["curve"]]
        if not begun:
            return "not over"
        run = max(begun, key=lambda run: run["curve"][-1][0])
        step, score = run["curve"][-1]
        return f"not over; after {step / run['steps_per_epoch']:.0f} epochs {score:.3f} on validation"
    return f"{of_seeds(row['scores'])}, TV {row['test']['tv']:.3f}, {fmean(row['best_epochs']):.0f}"
