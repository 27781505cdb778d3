"""Tables of ``swila run cdar`` and ``mqar``: the small one, the paper's size, open points, and the paper's claims."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from swila.experiments.recall import CACHES, MODELS, headline, mean_over_rates
from swila.tables.conditions import conditions, under_which
from swila.tables.markdown import markdown
from swila.tables.wording import CLAIM, of_seeds, verdict

NEAR_PERFECT = 0.95


def small_table(record: dict[str, Any], longer: dict[str, Any] | None = None) -> str:
    """Markdown for the results of ``swila run cdar`` or ``mqar``, and what became of the models with more steps."""
    rows = []
    for row in record["rows"]:
        numbers = f"{row['state']:,}", f"{row['parameters']:,}", f"{row['best']:.3f}", f"{row['mean']:.3f}"
        rows.append((_name(row["model"]), *numbers, f"{row['solved']} of {row['runs']} seeds"))
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
    told = ", ".join(f"{_name(row['model'])} {row['best']:.2f} ({row['mean']:.2f})" for row in record["rows"])
    return f"With up to {steps:,} steps the best seeds (and the means) get to: {told}. "


def recall_table(record: dict[str, Any]) -> str:
    """Markdown for the results at the paper's size: a row for each model and depth, a column for each width."""
    rows = headline(record["rows"])
    widths = sorted({row["hidden_size"] for row in rows})
    states = {row["hidden_size"]: row["state"] for row in rows if row["model"] not in CACHES and row["layers"] == 1}
    headings = [f"d {width}" + (f", {_power(states[width])}" if width in states else "") for width in widths]
    found = {(row["model"], row["layers"], row["hidden_size"]): row for row in rows}
    lines = []
    for model in dict.fromkeys([*MODELS, *(row["model"] for row in rows)]):
        for layers in sorted({layers for kind, layers, _ in found if kind == model}):
            cells = [_cell(found.get((model, layers, width)), record["runs"]) for width in widths]
            lines.append((_name(model), str(layers), *cells))
    return markdown(
        "lr" + "l" * len(widths),
        ["model", "layers", *headings],
        lines,
        "Test accuracy: the best evaluation of the best run (how many runs, and their mean, if several). Attention has "
        f"a cache instead of a state, its size is in the cell. 1/C is {record['plateau']:.2f}. {under_which(record)}",
    )


def settings_table(record: dict[str, Any]) -> str:
    """Markdown for variants of one model: how many seeds get how far, for each setting and learning rate."""
    rows = []
    for row in record["rows"]:
        for rate in row["lrs"]:
            runs = [record["runs"][name] for name in row["names"] if record["runs"][name]["lr"] == rate]
            scores = [run["best"] for run in runs]
            counts = [sum(run["status"] == "solved" for run in runs), sum(score > 0.9 for score in scores)]
            numbers = *(f"{count} of {len(runs)}" for count in counts), f"{fmean(scores):.3f}", f"{min(scores):.3f}"
            rows.append((_setting(row), f"{rate:g}", *numbers))
    return markdown(
        "lrrrrr",
        [_name(record["rows"][0]["model"]), "learning rate", "solved", "above 0.9", "mean", "worst"],
        rows,
        f"{conditions(record)}.",
    )


def rates_table(record: dict[str, Any]) -> str:
    """Markdown for what each learning rate came to: a row for each model and size that has several."""
    rows = [row for row in headline(record["rows"]) if len(row["lrs"]) > 1]
    rates = sorted({rate for row in rows for rate in row["lrs"]})
    lines = []
    for row in rows:
        runs = [record["runs"][name] for name in row["names"]]
        scores = [[run["best"] for run in runs if run["lr"] == rate and "best" in run] for rate in rates]
        lines.append((_name(row["model"]), _size(row), *(of_seeds(found) if found else "" for found in scores)))
    return markdown("ll" + "l" * len(rates), ["model", "size", *(f"learning rate {rate:g}" for rate in rates)], lines)


def epochs_table(record: dict[str, Any]) -> str:
    """Markdown for variants of one model: how far a run of each is after every epoch."""
    runs = list(record["runs"].values())
    last = max(round(run["curve"][-1][0] / run["steps_per_epoch"]) for run in runs)
    rows = []
    for run in sorted(runs, key=lambda run: ("variant" in run, -run["best"])):
        reached = {round(step / run["steps_per_epoch"]): score for step, score in run["curve"]}
        scores = (f"{reached[epoch]:.3f}" if epoch in reached else "" for epoch in range(1, last + 1))
        rows.append((_setting(run), f"{run['lr']:g}", *scores))
    epochs = [f"after epoch {epoch}" for epoch in range(1, last + 1)]
    model = _name(runs[0]["model"])
    return markdown("l" + "r" * (last + 1), [model, "learning rate", *epochs], rows, f"{conditions(record)}.")


def recall_claims(record: dict[str, Any], longer: dict[str, Any] | None = None) -> str:
    """What the paper says of CDAR, and what these results say; near-perfect is :data:`NEAR_PERFECT`.

    ``longer`` are runs with more epochs, told beside the others.
    """
    rows = [row for row in headline(record["rows"]) if row["best"] is not None]
    recurrent = [row for row in rows if row["model"] not in CACHES]
    single = [row for row in recurrent if row["layers"] == 1]
    runs = [run for run in record["runs"].values() if run.get("best") is not None and not run.get("variant")]
    epochs = max(run["planned_steps"] / run["steps_per_epoch"] for run in runs)
    rates = ", ".join(f"{rate:g}" for rate in sorted({run["lr"] for run in runs}))
    claims = [
        (
            "Temporal SwiLA with one head of D = 32 and 4 mixtures (state $2^{12}$) is the smallest configuration with "
            "near-perfect accuracy.",
            _smallest(recurrent) + _with_more(longer, "temporal-swila"),
        ),
        ("All other recurrent models (nearly) solve the task with one layer as the state grows.", _others(single)),
        (
            "The Transformer needs two layers.",
            _depths([row for row in rows if row["model"] == "attention"]) + _with_more(longer, "attention"),
        ),
        ("The mean over learning rates shows the same.", _means([row for row in single if row["state"] == 4096], runs)),
    ]
    return markdown(
        "ll",
        CLAIM,
        claims,
        f"Near-perfect is {NEAR_PERFECT} or more. The paper's runs have 50 epochs, four learning rates and three "
        f"seeds, those here, where nothing else is said, up to {epochs:.0f} epochs and some of the learning rates "
        f"{rates}, as the next tables tell.",
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
    rates = f" of {len(row['lrs'])} learning rates" if len(row["lrs"]) > 1 else ""
    several = f" (×{over}{rates}, mean {row['mean']:.3f})" if over > 1 else ""
    best = f"**{row['best']:.3f}**" if row["best"] >= NEAR_PERFECT else f"{row['best']:.3f}"
    return best + several + cache


def _smallest(rows: list[dict[str, Any]]) -> str:
    target = [row for row in rows if (row["model"], row["state"], row["layers"]) == ("temporal-swila", 4096, 1)]
    others = [row for row in rows if row["state"] <= 4096 and row not in target]
    if not target or not others:
        return "not run"
    best = max(row["best"] for row in others)
    told = f"Temporal SwiLA at $2^{{12}}$ {target[0]['best']:.3f}; otherwise up to $2^{{12}}$ {_list(others)}"
    return f"**{verdict(target[0]['best'] >= NEAR_PERFECT > best)}**: {told}"


def _with_more(record: dict[str, Any] | None, model: str) -> str:
    """What runs with more epochs came to, or where they stood."""
    told = []
    for run in record["runs"].values() if record else ():
        if run["model"] == model and run["curve"]:
            depth = f", {run['num_layers']} layers" if run["num_layers"] > 1 else ""
            epochs = run["planned_steps"] / run["steps_per_epoch"]
            step, score = run["curve"][-1]
            so_far = f"so far, after {step / run['steps_per_epoch']:.0f}, {score:.3f}"
            found = f"{run['best']:.3f} in {run['seconds']:.0f} s" if run.get("best") is not None else so_far
            which = f"d {run['hidden_size']}{depth}, learning rate {run['lr']:g}"
            told.append(f"; with {epochs:.0f} epochs ({which}) {found}")
    return "".join(told)


def _others(rows: list[dict[str, Any]]) -> str:
    largest: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["model"] != "temporal-swila" and row["state"] >= largest.get(row["model"], row)["state"]:
            largest[row["model"]] = row
    if not largest:
        return "not run"
    solved = all(row["best"] >= NEAR_PERFECT for row in largest.values())
    return f"**{'yes' if solved else 'not in these runs'}**: {_list(list(largest.values()))}"


def _depths(rows: list[dict[str, Any]]) -> str:
    best = {depth: max((row["best"] for row in rows if row["layers"] == depth), default=None) for depth in (1, 2)}
    one, two = best[1], best[2]
    if one is None or two is None:
        return "not run"
    word = "yes" if two >= NEAR_PERFECT > one else "no" if one >= NEAR_PERFECT else "not in these runs"
    return f"**{word}**: {one:.3f} with one layer, {two:.3f} with two"


def _means(rows: list[dict[str, Any]], runs: list[dict[str, Any]]) -> str:
    """At one state size, over the learning rates that all of its models have."""
    shared = set.intersection(*(set(row["lrs"]) for row in rows)) if rows else set()
    if len(rows) < 2 or len(shared) < 2:
        return "not run: the models have fewer than two learning rates in common"
    means = {}
    for row in rows:
        own = [run for run in runs if run["name"] in row["names"] and run["lr"] in shared]
        means[row["model"]] = mean_over_rates([(run["lr"], run["best"]) for run in own])
    ordered = sorted(((mean, model) for model, mean in means.items() if mean is not None), reverse=True)
    so = ordered[0][1] == "temporal-swila" and ordered[0][0] > ordered[1][0] + 0.1
    told = ", ".join(f"{_name(model)} {mean:.3f}" for mean, model in ordered)
    rates = ", ".join(f"{rate:g}" for rate in sorted(shared))
    return f"**{verdict(so)}**, at $2^{{12}}$ over {rates}: {told}"


def _list(rows: list[dict[str, Any]]) -> str:
    ordered = sorted(rows, key=lambda row: row["state"])
    return ", ".join(
        f"{_name(row['model'])} at {_power(row['state'])}{_deep(row)} {row['best']:.3f}" for row in ordered
    )


def _size(row: dict[str, Any]) -> str:
    state = "cache" if row["model"] in CACHES else "state"
    return f"d {row['hidden_size']}{_deep(row)}, {state} {_power(row['state'])}"


def _setting(found: dict[str, Any]) -> str:
    return f"`{found['variant']}`" if found.get("variant") else "as it is"


def _deep(row: dict[str, Any]) -> str:
    return "" if row["layers"] == 1 else f" ({row['layers']} layers)"


def _name(model: str) -> str:
    return MODELS.get(model, model)
