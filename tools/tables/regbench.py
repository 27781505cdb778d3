"""Tables of ``swila run regbench``: the results, and the paper's claims."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from tools.tables.conditions import under_which
from tools.tables.effort import effort, less_tried
from tools.tables.markdown import markdown
from tools.tables.wording import APART, CLAIM, NO, NOT_RUN, not_decided, of_seeds, standing, yes

from swila.experiments.catalogue import title
from swila.experiments.regbench.runs import MODELS

FEW, MANY = 1_000, 40_000  # the paper's fewest and most training automata
SIMILAR = 0.02


def regbench_table(record: dict[str, Any]) -> str:
    """Markdown for the results of ``swila run regbench``: a row for each model, a column for each training set."""
    sizes = sorted({row["train_examples"] for row in record["rows"]})
    rows = []
    for model in MODELS:
        found = {row["train_examples"]: row for row in record["rows"] if row["model"] == model}
        if found:
            parameters = next(iter(found.values()))["parameters"]
            cells = (_accuracy(found.get(size), record["runs"]) for size in sizes)
            rows.append((title(model), f"{parameters:,}", *cells))
    for name, score in record["yardsticks"].items():
        rows.append((f"*{name}*", "", *[f"*{score['accuracy']:.3f}*, TV *{score['tv']:.3f}*"] * len(sizes)))
    return markdown(
        "lr" + "l" * len(sizes),
        ["model", "parameters", *(f"{size:,} automata" for size in sizes)],
        rows,
        "Mean test accuracy over seeds (lowest–highest; × number of seeds), then total variation (TV) and the mean "
        f"epoch of the weights with the lowest validation loss. {under_which(record)}",
    )


def regbench_claims(record: dict[str, Any]) -> str:
    """Markdown with a verdict on each of the paper's claims about RegBench."""
    rows = {(row["model"], row["train_examples"]): row for row in record["rows"] if row["mean"] is not None}
    claims = [
        (
            "5.2, figure 2b",
            f"With {FEW:,} training automata Temporal SwiLA and DN-MoM are above the Transformer.",
            _few(rows, record["runs"]),
        ),
        (
            "5.2, figure 2b",
            "The Transformer improves steeply with more data, and is the best in the end.",
            _in_the_end(rows),
        ),
        ("5.2, figure 2b", f"At scale ({MANY:,}) all are similar, DeltaNet slightly trailing.", _at_scale(rows)),
    ]
    return markdown(
        "lll",
        CLAIM,
        claims,
        f"{APART} Similar means within {SIMILAR} of the best.",
    )


Rows = dict[tuple[str, int], dict[str, Any]]


def _few(rows: Rows, runs: dict[str, dict[str, Any]]) -> str:
    transformer = rows.get(("attention", FEW))
    if transformer is None:
        return NOT_RUN
    told = []
    for model in ("temporal-swila", "dn-mom"):
        row, name = rows.get((model, FEW)), title(model)
        found = NOT_RUN if row is None else f"{_against(row, transformer, runs)}, {of_seeds(row['scores'])}"
        told.append(f"{name} {found}")
    told.append(f"{title('attention')} {of_seeds(transformer['scores'])}")
    others = [
        f"{title(model)} {of_seeds(row['scores'])}"
        for (model, size), row in rows.items()
        if size == FEW and model not in ("temporal-swila", "dn-mom", "attention")
    ]
    return "; ".join([*told, *([f"not in the claim: {', '.join(others)}"] if others else [])])


def _against(row: dict[str, Any], baseline: dict[str, Any], runs: dict[str, dict[str, Any]]) -> str:
    how = standing(row, baseline)
    if how in ("overlap", "not above"):
        return NO
    reservations = ["one seed, no spread known"] if how == "higher, one seed" else []
    ours, theirs = (
        effort(
            run
            for run in runs.values()
            if (run["model"], run["train_examples"]) == (each["model"], each["train_examples"])
        )
        for each in (row, baseline)
    )
    return yes(reservations + less_tried(title(row["model"]), ours, [theirs]))


def _in_the_end(rows: Rows) -> str:
    transformer = {size: row for (model, size), row in sorted(rows.items()) if model == "attention"}
    if not transformer:
        return NOT_RUN
    told = f"{title('attention')} " + ", ".join(f"{row['mean']:.3f} with {size:,}" for size, row in transformer.items())
    largest = max(transformer)
    others = {model: row for (model, size), row in rows.items() if size == largest and model != "attention"}
    if others:
        name, best = max(others.items(), key=lambda item: item[1]["mean"])
        told += f"; the best other model with {largest:,} is {title(name)}, {best['mean']:.3f}"
    if largest < MANY or min(transformer) == largest or not others:
        fewer = f"at most {largest:,} automata for {title('attention')}"
        return f"{not_decided([fewer])}: {told}"
    how = [standing(transformer[largest], row) for row in others.values()]
    if set(how) & {"overlap", "not above"}:
        return f"{NO}: {told}"
    return f"{yes(['one seed, no spread known'] if 'higher, one seed' in how else [])}: {told}"


def _at_scale(rows: Rows) -> str:
    largest = max((size for _, size in rows), default=0)
    means = {model: row["mean"] for (model, size), row in rows.items() if size == largest}
    told = f"with {largest:,}: " + ", ".join(f"{title(model)} {means[model]:.3f}" for model in MODELS if model in means)
    if largest < MANY or not {"deltanet", "attention"} <= means.keys():
        return f"{NOT_RUN} at that scale; {told}"
    best = max(means.values())
    close = all(best - mean <= SIMILAR for mean in means.values())
    return f"{yes() if close and min(means, key=lambda model: means[model]) == 'deltanet' else NO}; {told}"


def _accuracy(row: dict[str, Any] | None, runs: dict[str, Any]) -> str:
    if row is None:
        return "not run"
    if row["mean"] is None:
        begun = [runs[name] for name in row["unfinished"] if runs[name]["curve"]]
        if not begun:
            return "unfinished"
        run = max(begun, key=lambda run: run["curve"][-1][0])
        step, score = run["curve"][-1]
        return f"unfinished; after {step / run['steps_per_epoch']:.0f} epochs {score:.3f} on validation"
    return f"{of_seeds(row['scores'])}, TV {row['test']['tv']:.3f}, epoch {fmean(row['best_epochs']):.0f}"
