"""Tables of what ``swila run`` found."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from swila.experiments import regbench
from swila.tables.conditions import conditions
from swila.tables.markdown import markdown

CLAIM = ("the paper", "here")


def regression_table(record: dict[str, Any]) -> str:
    """Markdown for the results of ``swila run softmax-regression``: a row for each state size."""
    rows = []
    for state in sorted({row["state"] for row in record["rows"] if row["model"] == "swila"}):
        found = [row for row in record["rows"] if row["state"] == state]
        deltanet = next((row for row in found if row["model"] == "deltanet"), None)
        best, *others = sorted(
            (row for row in found if row["model"] == "swila"),
            key=lambda row: (not row["best_of_budget"], -(row["mean"] or 0)),
        )
        rows.append((f"{state:,}", _r2(deltanet), f"**{_r2(best)}**", ", ".join(map(_r2, others))))
    attention = next((row for row in record["rows"] if row["model"] == "attention"), None)
    return markdown(
        "rlll",
        ["state", "DeltaNet", "SwiLA, best", "other ways to share the state"],
        rows,
        f"Test R², means over seeds (lowest–highest; × how many). Trainable softmax attention: {_r2(attention)}. "
        f"{under_which(record)}",
    )


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


def regression_claims(record: dict[str, Any]) -> str:
    """What the paper says of approximating softmax attention, and what these results say."""
    over = [row for row in record["rows"] if row["mean"] is not None]
    scalars = record["task"]["dim"] ** 2
    budgets = sorted({row["state"] // scalars for row in record["rows"] if row["model"] == "swila"})
    rival = {row["state"] // scalars: row for row in over if row["model"] == "deltanet"}
    best = {row["state"] // scalars: row for row in over if row["best_of_budget"]}
    claims = [
        ("At every state budget the best SwiLA is above DeltaNet.", _above(budgets, best, rival)),
        ("At B=2, H1J2 is above DeltaNet's H2 by a clear margin.", _margin(over)),
        (
            "As the budget grows, the best configurations balance heads and mixtures (H2J2 at B=4).",
            "; ".join(f"B={budget}: {_balance(best[budget])}" for budget in budgets if budget > 2 and budget in best),
        ),
    ]
    return markdown("ll", CLAIM, claims)


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
        return f"**{verdict(_apart(row, first))}**, {regbench.MODELS[model]} {of_seeds(row['scores'])}"

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


def _above(budgets: list[int], best: dict[int, dict[str, Any]], rival: dict[int, dict[str, Any]]) -> str:
    known = [budget for budget in budgets if budget in best and budget in rival]
    overlap = [budget for budget in known if not _apart(best[budget], rival[budget])]
    verdict = f"**{'not at every one' if overlap else 'yes'}**"
    if overlap and len(overlap) < len(known) and all(best[budget]["size"].endswith("J1") for budget in overlap):
        verdict = "**yes**, wherever the best has mixtures; with one mixture SwiLA is DeltaNet"
    missing = [str(budget) for budget in budgets if budget not in known]
    if missing:
        verdict += ", where run to the end"
    gaps = [
        f"B={budget}: {best[budget]['mean'] - rival[budget]['mean']:+.3f}"
        + (" (seeds overlap)" if budget in overlap else "")
        for budget in known
    ]
    rest = f"; not yet run to the end: B={', '.join(missing)}" if missing else ""
    return f"{verdict}: best SwiLA minus DeltaNet, {', '.join(gaps)}{rest}"


def _margin(rows: list[dict[str, Any]]) -> str:
    found = {(row["model"], row["size"]): row for row in rows}
    one, two = found.get(("swila", "H1J2")), found.get(("deltanet", "H2"))
    return f"**{verdict(_apart(one, two))}**: {_r2(one)} against {_r2(two)}" if one and two else "–"


def _balance(row: dict[str, Any]) -> str:
    at_an_end = row["size"].startswith("H1J") or row["size"].endswith("J1")
    return f"{row['size']} ({'at an end' if at_an_end else 'balanced'})"


def _apart(row: dict[str, Any], rival: dict[str, Any]) -> bool:
    """Whether the worst seed is above the rival's best."""
    return min(row["scores"]) > max(rival["scores"])


def verdict(so: bool) -> str:
    """In a word."""
    return "yes" if so else "no"


def _r2(row: dict[str, Any] | None) -> str:
    if row is None or row["mean"] is None:
        return "not run" if row is None else f"{row['size']} not over"
    return f"{row['size']} {of_seeds(row['scores'])}"


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


def of_seeds(scores: list[float]) -> str:
    """``0.912 (0.905–0.917; ×3)``."""
    if len(scores) == 1:
        return f"{scores[0]:.3f} (×1)"
    return f"{fmean(scores):.3f} ({min(scores):.3f}–{max(scores):.3f}; ×{len(scores)})"


def under_which(record: dict[str, Any]) -> str:
    """How many runs of which length there were, which are not over, and where."""
    runs = record["runs"].values()
    seconds = [run["seconds"] for run in runs if "seconds" in run]
    begun = [run["name"] for run in runs if "best" not in run and run["curve"]]
    not_over = f" Begun, but not over: {', '.join(begun)}." if begun else ""
    lengths = f"{min(seconds):.0f} to {max(seconds):.0f} s each"
    return f"{len(seconds)} runs of {lengths}, several at a time.{not_over} {conditions(record)}."
