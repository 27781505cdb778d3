"""Tables of what ``swila run`` found."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from swila.experiments import cdar, regbench
from swila.tables.conditions import conditions


def cdar_table(record: dict[str, Any], longer: dict[str, Any]) -> str:
    """Markdown for the results of ``swila run cdar``, and what became of its models with more steps."""
    lines = [
        "| model | state | parameters | best accuracy | mean | solved |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        lines.append(
            f"| {cdar.MODELS[row['model']]} | {row['state']:,} | {row['parameters']:,} | {row['best']:.3f} | "
            f"{row['mean']:.3f} | {row['solved']} of {row['runs']} seeds |"
        )
    seconds = sum(result["seconds"] for result in record["runs"].values())
    summed = f"{seconds:.0f} s of training, summed over runs that go side by side"
    steps = max(result["steps"] for result in longer["runs"].values())
    later = ", ".join(f"{cdar.MODELS[row['model']]} {row['best']:.2f} ({row['mean']:.2f})" for row in longer["rows"])
    lines += [
        "",
        f"1/C is {record['plateau']:.2f}. The best test accuracy of each run; {summed}. With up to {steps:,} steps the "
        f"best seeds (and the means) get to: {later}. {conditions(record)}.",
    ]
    return "\n".join(lines)


def regression_table(record: dict[str, Any]) -> str:
    """Markdown for the results of ``swila run softmax-regression``: a row for each state size."""
    lines = ["| state | DeltaNet | SwiLA, best | other ways to share the state |", "|---:|---|---|---|"]
    for state in sorted({row["state"] for row in record["rows"] if row["model"] == "swila"}):
        rows = [row for row in record["rows"] if row["state"] == state]
        deltanet = next((row for row in rows if row["model"] == "deltanet"), None)
        swila = sorted(
            (row for row in rows if row["model"] == "swila"),
            key=lambda row: (not row["best_of_budget"], -(row["mean"] or 0)),
        )
        cells = [_r2(deltanet), f"**{_r2(swila[0])}**", ", ".join(_r2(row) for row in swila[1:])]
        lines.append(f"| {state:,} | {' | '.join(cells)} |")
    attention = next((row for row in record["rows"] if row["model"] == "attention"), None)
    seconds = [run["seconds"] for run in record["runs"].values() if "seconds" in run]
    lines += [
        "",
        f"Test R², means over seeds (lowest–highest; × how many). Trainable softmax attention: {_r2(attention)}. "
        f"{len(seconds)} runs of {_range(seconds)} s each, several at a time.{_not_over(record)} "
        f"{conditions(record)}.",
    ]
    return "\n".join(lines)


def regbench_table(record: dict[str, Any]) -> str:
    """Markdown for the results of ``swila run regbench``: a row for each model, a column for each training set."""
    sizes = sorted({row["train_examples"] for row in record["rows"]})
    lines = [
        "| model | parameters | " + " | ".join(f"{size:,} automata" for size in sizes) + " |",
        "|---|---:|" + "---|" * len(sizes),
    ]
    for model, name in regbench.MODELS.items():
        rows = {row["train_examples"]: row for row in record["rows"] if row["model"] == model}
        if rows:
            cells = [_accuracy(rows.get(size), record["runs"]) for size in sizes]
            lines.append(f"| {name} | {next(iter(rows.values()))['parameters']:,} | {' | '.join(cells)} |")
    for name, found in record["yardsticks"].items():
        lines.append(
            f"| *{name}* | | " + " | ".join([f"*{found['accuracy']:.3f}*, TV *{found['tv']:.3f}*"] * len(sizes)) + " |"
        )
    seconds = [run["seconds"] for run in record["runs"].values() if "seconds" in run]
    lines += [
        "",
        "Test accuracy, means over seeds (lowest–highest; × how many), then total variation and the epoch of the "
        f"chosen weights. {len(seconds)} runs of {_range(seconds)} s each, several at a time.{_not_over(record)} "
        f"{conditions(record)}.",
    ]
    return "\n".join(lines)


def _r2(row: dict[str, Any] | None) -> str:
    if row is None or row["mean"] is None:
        return "not run" if row is None else f"{row['size']} not over"
    return f"{row['size']} {_seeds(row['scores'])}"


def _accuracy(row: dict[str, Any] | None, runs: dict[str, Any]) -> str:
    if row is None:
        return "not run"
    if row["mean"] is None:
        begun = [runs[name] for name in row["not_over"] if runs[name]["curve"]]
        if not begun:
            return "not over"
        step, score = max((run["curve"][-1] for run in begun), key=lambda point: point[0])
        return f"not over; after {step / begun[0]['steps_per_epoch']:.0f} epochs {score:.3f} on validation"
    return f"{_seeds(row['scores'])}, TV {row['test']['tv']:.3f}, {fmean(row['best_epochs']):.0f}"


def _seeds(scores: list[float]) -> str:
    if len(scores) == 1:
        return f"{scores[0]:.3f} (×1)"
    return f"{fmean(scores):.3f} ({min(scores):.3f}–{max(scores):.3f}; ×{len(scores)})"


def _not_over(record: dict[str, Any]) -> str:
    names = [run["name"] for run in record["runs"].values() if "best" not in run and run["curve"]]
    return f" Begun, but not over: {', '.join(names)}." if names else ""


def _range(seconds: list[float]) -> str:
    return f"{min(seconds):.0f} to {max(seconds):.0f}"


def regression_claims(record: dict[str, Any]) -> str:
    """What the paper says of approximating softmax attention, and what these results say."""
    rows = {(row["model"], row["size"]): row for row in record["rows"] if row["mean"] is not None}
    states = sorted({row["state"] for row in record["rows"] if row["model"] == "swila"})
    dim = record["task"]["dim"]
    swila = {s: [r for (m, _), r in rows.items() if m == "swila" and r["state"] == s] for s in states}
    pairs, apart, mixed = {}, {}, {}
    for state in states:
        rival = rows.get(("deltanet", f"H{state // dim**2}"))
        if swila[state] and rival:
            best = next(row for row in swila[state] if row["best_of_budget"])
            pairs[state // dim**2] = best["mean"] - rival["mean"]
            apart[state // dim**2] = min(best["scores"]) > max(rival["scores"])
            mixed[state // dim**2] = not best["size"].endswith("J1")
    above = ", ".join(
        f"B={budget}: {gap:+.3f}{'' if apart[budget] else ' (seeds overlap)'}" for budget, gap in pairs.items()
    )
    every = "**yes**" if all(apart.values()) else "**not at every one**"
    if not all(apart.values()) and any(mixed.values()) and all(apart[budget] for budget in mixed if mixed[budget]):
        every = "**yes**, wherever the best has mixtures; with one mixture SwiLA is DeltaNet"
    if len(pairs) < len(states):
        every += ", where run to the end"
    missing = [str(s // dim**2) for s in states if s // dim**2 not in pairs]
    one, two = rows.get(("swila", "H1J2")), rows.get(("deltanet", "H2"))
    margin = "–"
    if one and two:
        clear = min(one["scores"]) > max(two["scores"])
        margin = f"**{'yes' if clear else 'no'}**: {_r2(one)} against {_r2(two)}"
    balanced = []
    for state in states:
        if len(swila[state]) > 2:
            best = next(row for row in swila[state] if row["best_of_budget"])
            ends = [row for row in swila[state] if row["size"].startswith("H1J") or row["size"].endswith("J1")]
            verdict = "balanced" if best not in ends else "at an end"
            balanced.append(f"B={state // dim**2}: {best['size']} ({verdict})")
    lines = [
        "| the paper | here |",
        "|---|---|",
        f"| At every state budget the best SwiLA is above DeltaNet. | {every}: best SwiLA minus DeltaNet, {above}"
        + (f"; not yet run to the end: B={', '.join(missing)}" if missing else "")
        + " |",
        f"| At B=2, H1J2 is above DeltaNet's H2 by a clear margin. | {margin} |",
        "| As the budget grows, the best configurations balance heads and mixtures (H2J2 at B=4). | "
        + "; ".join(balanced)
        + " |",
    ]
    return "\n".join(lines)


def regbench_claims(record: dict[str, Any]) -> str:
    """What the paper says of RegBench, and what these results say."""
    rows = {(row["model"], row["train_examples"]): row for row in record["rows"] if row["mean"] is not None}
    sizes = sorted({size for _, size in rows})

    def against(model: str, size: int) -> str:
        row, rival = rows.get((model, size)), rows.get(("attention", size))
        if row is None or rival is None:
            return f"{regbench.MODELS[model]} –"
        verdict = "yes" if min(row["scores"]) > max(rival["scores"]) else "no"
        return f"**{verdict}**, {regbench.MODELS[model]} {_seeds(row['scores'])}"

    transformer = ", ".join(
        f"{rows['attention', size]['mean']:.3f} with {size:,}" for size in sizes if ("attention", size) in rows
    )
    largest = max(sizes)
    others = [
        f"{name} {rows[model, largest]['mean']:.3f}"
        for model, name in regbench.MODELS.items()
        if (model, largest) in rows
    ]
    first = rows.get(("attention", sizes[0]))
    lines = [
        "| the paper | here |",
        "|---|---|",
        "| With 1,000 training automata Temporal SwiLA and DN-MoM are above the Transformer. | "
        + "; ".join(against(model, 1000) for model in ("temporal-swila", "dn-mom"))
        + f"; Transformer {_seeds(first['scores']) if first else '–'} |",
        f"| The Transformer improves steeply with more data, and is the best in the end. | Transformer {transformer} |",
        f"| At scale all are similar, DeltaNet slightly trailing (40,000). | not run at that scale; with {largest:,}: "
        + ", ".join(others)
        + " |",
    ]
    return "\n".join(lines)
