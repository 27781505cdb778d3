"""Tables of ``swila run softmax-regression``: the results, and the paper's claims."""

from __future__ import annotations

from typing import Any

from swila.tables.conditions import under_which
from swila.tables.markdown import markdown
from swila.tables.wording import CLAIM, apart, of_seeds, verdict


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


def _above(budgets: list[int], best: dict[int, dict[str, Any]], rival: dict[int, dict[str, Any]]) -> str:
    known = [budget for budget in budgets if budget in best and budget in rival]
    overlap = [budget for budget in known if not apart(best[budget], rival[budget])]
    word = f"**{'not at every one' if overlap else 'yes'}**"
    if overlap and len(overlap) < len(known) and all(best[budget]["size"].endswith("J1") for budget in overlap):
        word = "**yes**, wherever the best has mixtures; with one mixture SwiLA is DeltaNet"
    missing = [str(budget) for budget in budgets if budget not in known]
    if missing:
        word += ", where run to the end"
    gaps = [
        f"B={budget}: {best[budget]['mean'] - rival[budget]['mean']:+.3f}"
        + (" (seeds overlap)" if budget in overlap else "")
        for budget in known
    ]
    rest = f"; not yet run to the end: B={', '.join(missing)}" if missing else ""
    return f"{word}: best SwiLA minus DeltaNet, {', '.join(gaps)}{rest}"


def _margin(rows: list[dict[str, Any]]) -> str:
    found = {(row["model"], row["size"]): row for row in rows}
    one, two = found.get(("swila", "H1J2")), found.get(("deltanet", "H2"))
    return f"**{verdict(apart(one, two))}**: {_r2(one)} against {_r2(two)}" if one and two else "–"


def _balance(row: dict[str, Any]) -> str:
    at_an_end = row["size"].startswith("H1J") or row["size"].endswith("J1")
    return f"{row['size']} ({'at an end' if at_an_end else 'balanced'})"


def _r2(row: dict[str, Any] | None) -> str:
    if row is None or row["mean"] is None:
        return "not run" if row is None else f"{row['size']} not over"
    return f"{row['size']} {of_seeds(row['scores'])}"
