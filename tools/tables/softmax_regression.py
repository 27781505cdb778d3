"""Tables of ``swila run softmax-regression``: the results, and the paper's claims."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tools.tables.conditions import under_which
from tools.tables.effort import as_much, effort
from tools.tables.markdown import markdown
from tools.tables.wording import APART, CLAIM, NO, NOT_RUN, listed, of_seeds, standing, yes


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
        ["state", "DeltaNet", "best SwiLA", "other SwiLA configurations"],
        rows,
        f"Mean test R² over seeds (lowest–highest; × number of seeds). Trainable softmax attention: {_r2(attention)}. "
        f"{under_which(record)}",
    )


def regression_claims(record: dict[str, Any]) -> str:
    """Markdown with a verdict on each of the paper's claims about approximating softmax attention."""
    over = {(row["model"], row["size"]): row for row in record["rows"] if row["mean"] is not None}
    scalars = record["task"]["dim"] ** 2
    budgets = sorted({row["state"] // scalars for row in record["rows"] if row["model"] == "swila"})
    best = {row["state"] // scalars: row for row in over.values() if row["best_of_budget"]}
    one_head = {budget: over["swila", f"H1J{budget}"] for budget in budgets if ("swila", f"H1J{budget}") in over}

    def above(budgets: list[int], ours: dict[int, dict[str, Any]]) -> str:
        return _above(budgets, ours, over, record["runs"])

    mixtures = [budget for budget in budgets if budget > 1 and budget in one_head]
    claims = [
        (
            "5.1, figures 1C, S1",
            "At every state budget the best SwiLA is above DeltaNet.",
            above(budgets, best),
        ),
        (
            "5.1",
            "At B=2, one head with two mixtures (H1J2) is above DeltaNet's two heads (H2) by a clear margin.",
            _margin(over, record["runs"]),
        ),
        (
            "5.1",
            "This advantage persists as the budget increases.",
            above([budget for budget in budgets if budget > 2], best),
        ),
        (
            "5.1",
            "Budget in mixtures within a head is better than in independent heads.",
            f"one head with B mixtures (H1JB) against B heads (HB): {above(mixtures, one_head)}",
        ),
        (
            "5.1",
            "As the budget grows, the best configurations tend to balance heads and mixtures (H2J2 at B=4).",
            _balance({budget: best[budget] for budget in budgets if budget > 2 and budget in best}, over),
        ),
    ]
    return markdown(
        "lll",
        CLAIM,
        claims,
        f"{APART} A configuration is balanced if its numbers of heads and mixtures are both above one and differ by at "
        "most a factor of two. Configuration and learning rate are chosen by validation loss.",
    )


def _above(
    budgets: list[int],
    ours: dict[int, dict[str, Any]],
    over: dict[tuple[str, str], dict[str, Any]],
    runs: dict[str, dict[str, Any]],
) -> str:
    """Say whether SwiLA is above DeltaNet at each budget, and by how much."""
    pairs = {B: (ours[B], over["deltanet", f"H{B}"]) for B in budgets if B in ours and ("deltanet", f"H{B}") in over}
    if not pairs:
        return NOT_RUN
    found = {budget: standing(*pair) for budget, pair in pairs.items()}
    against = [budget for budget, how in found.items() if how in ("overlap", "not above")]
    clear = [budget for budget in found if budget not in against]
    single = [budget for budget in clear if found[budget] == "higher, one seed"]
    missing = [budget for budget in budgets if budget not in pairs]
    reservations = []
    if single:
        reservations.append(f"one seed each at {_budgets(single)}, no spread known")
    if favoured := [budget for budget in clear if not _tried_alike(*pairs[budget], runs)]:
        reservations.append(f"other learning rates or seeds for DeltaNet at {_budgets(favoured)}")
    if missing:
        reservations.append(f"{_budgets(missing)} unfinished")
    word = yes(reservations)
    if against:
        undecided = [budget for budget in against if not _tried_alike(pairs[budget][1], pairs[budget][0], runs)]
        words = [f"{NO}, not at {_budgets(plain)}"] if (plain := [b for b in against if b not in undecided]) else []
        if undecided:
            words.append(f"not decided at {_budgets(undecided)}, with fewer learning rates or seeds for SwiLA")
        word = "; ".join([*words, *([f"elsewhere {yes(reservations)}"] if clear else [])])
    gaps = [
        f"B={budget} {row['mean'] - baseline['mean']:+.3f} ({_SEEDS[found[budget]]})"
        for budget, (row, baseline) in pairs.items()
    ]
    return f"{word}: SwiLA minus DeltaNet, {', '.join(gaps)}"


_SEEDS = {"above": "seeds apart", "higher, one seed": "one seed", "overlap": "seeds overlap", "not above": "below"}


def _margin(over: dict[tuple[str, str], dict[str, Any]], runs: dict[str, dict[str, Any]]) -> str:
    one, two = over.get(("swila", "H1J2")), over.get(("deltanet", "H2"))
    if one is None or two is None:
        return NOT_RUN
    numbers = f"{_r2(one)} against {_r2(two)}"
    how = standing(one, two)
    if how in ("overlap", "not above"):
        return f"{NO}: {numbers}"
    reservations = ["one seed, no spread known"] if how == "higher, one seed" else []
    if not _tried_alike(one, two, runs):
        reservations.append("other learning rates or seeds for DeltaNet")
    return f"{yes(reservations)}: {numbers}"


def _tried_alike(row: dict[str, Any], baseline: dict[str, Any], runs: dict[str, dict[str, Any]]) -> bool:
    """Whether the baseline's configuration has as many learning rates, seeds and epochs as the row's."""
    ours, theirs = (
        effort(run for run in runs.values() if (run["model"], run["size"]) == (each["model"], each["size"]))
        for each in (row, baseline)
    )
    return as_much(theirs, ours)


def _balance(best: dict[int, dict[str, Any]], over: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Say whether the best configurations are balanced, and whether unbalanced ones are clearly worse."""
    if not best:
        return NOT_RUN
    against = [budget for budget, row in best.items() if not balanced(row["size"])]
    single, close = [], {}
    for budget, row in best.items():
        others = [
            other
            for (model, size), other in over.items()
            if model == "swila" and other["state"] == row["state"] and not balanced(size)
        ]
        how = {other["size"]: standing(row, other) for other in others}
        if "higher, one seed" in how.values():
            single.append(budget)
        if near := [size for size, found in how.items() if found in ("overlap", "not above")]:
            close[budget] = near
    reservations = [f"seeds that overlap with those of {listed(near)} at B={B}" for B, near in close.items()]
    if single:
        reservations.append(f"one seed each at {_budgets(single)}, no spread known")
    word = f"{NO}, not at {_budgets(against)}" if against else yes(reservations)
    return f"{word}: " + ", ".join(f"{row['size']} at B={budget}" for budget, row in best.items())


def balanced(size: str) -> bool:
    """Whether heads and mixtures of a configuration ``H4J2`` are both several, and at most a factor of two apart."""
    heads, mixtures = (int(number) for number in re.findall(r"\d+", size))
    return min(heads, mixtures) > 1 and max(heads, mixtures) <= 2 * min(heads, mixtures)


def _budgets(budgets: Iterable[int]) -> str:
    return f"B={', '.join(map(str, budgets))}"


def _r2(row: dict[str, Any] | None) -> str:
    if row is None or row["mean"] is None:
        return "not run" if row is None else f"{row['size']} unfinished"
    return f"{row['size']} {of_seeds(row['scores'])}"
