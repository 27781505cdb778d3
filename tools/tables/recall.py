"""Tables of ``swila run cdar`` and ``swila run mqar``, by size, learning rate and setting."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from tools.tables.conditions import conditions, under_which
from tools.tables.markdown import markdown
from tools.tables.wording import of_seeds

from swila.experiments.catalogue import CATALOGUE, has_cache
from swila.experiments.catalogue import title as model_name
from swila.experiments.recall.summary import headline

NEAR_PERFECT = 0.95
SOLVED = 0.99  # training stops there


def small_table(record: dict[str, Any], longer: dict[str, Any] | None = None) -> str:
    """Markdown for the results of the tiny preset: a row for each model; ``longer``: the same with more updates."""
    rows = []
    for row in record["rows"]:
        numbers = f"{row['state']:,}", f"{row['parameters']:,}", f"{row['best']:.3f}", f"{row['mean']:.3f}"
        rows.append((model_name(row["model"]), *numbers, f"{row['solved']} of {row['runs']} seeds"))
    seconds = sum(result["seconds"] for result in record["runs"].values())
    plateau = f"1/C is {record['plateau']:.2f}. " if "plateau" in record else ""
    return markdown(
        "lrrrrr",
        ["model", "state", "parameters", "best accuracy", "mean accuracy", "solved"],
        rows,
        f"Test accuracy at the best evaluation of each run; a run is solved above {SOLVED}. {plateau}{_beside(record)}"
        f"{_later(longer) if longer else ''}Training time, summed over all runs: {seconds:.0f} s. "
        f"{conditions(record, packages=[])}.",
    )


def _beside(record: dict[str, Any]) -> str:
    """Say how large r and ρ are, which Temporal SwiLA carries beside W: J scalars each per output dim."""
    sizes = set()
    for run in record["runs"].values():
        if run["model"] == "temporal-swila":
            mixtures = run["num_layers"] * run["num_heads"] * run["num_mixtures"]
            sizes.add(2 * mixtures * math.isqrt(run["state"] // mixtures))  # heads are as wide as their keys
    told = " or ".join(str(size) for size in sorted(sizes))
    return f"The state counts W alone; Temporal SwiLA carries r and ρ as well ({told} scalars). " if told else ""


def _later(record: dict[str, Any]) -> str:
    steps = max(result["steps"] for result in record["runs"].values())
    told = ", ".join(f"{model_name(row['model'])} {row['best']:.2f} ({row['mean']:.2f})" for row in record["rows"])
    return f"After up to {steps:,} updates, the best accuracy (and the mean) is: {told}. "


def recall_table(record: dict[str, Any]) -> str:
    """Markdown for the results at the paper's size: a row for each model and depth, a column for each width."""
    rows: list[Any] = headline(record["rows"])
    widths = sorted({row["hidden_size"] for row in rows})
    states = {row["hidden_size"]: row["state"] for row in rows if not has_cache(row["model"]) and row["layers"] == 1}
    headings = [f"d {width}" + (f", {power(states[width])}" if width in states else "") for width in widths]
    found = {(row["model"], row["layers"], row["hidden_size"]): row for row in rows}
    lines = []
    for model in dict.fromkeys([*CATALOGUE, *(row["model"] for row in rows)]):
        for layers in sorted({layers for kind, layers, _ in found if kind == model}):
            cells = [_cell(found.get((model, layers, width)), record["runs"]) for width in widths]
            lines.append((model_name(model), str(layers), *cells))
    return markdown(
        "lr" + "l" * len(widths),
        ["model", "layers", *headings],
        lines,
        "Test accuracy at the best evaluation of the best run; in parentheses the number of runs (×) and their mean. "
        "Attention has a cache instead of a state; the cell gives its size. "
        f"{_beside(record)}1/C is {record['plateau']:.2f}. "
        f"{under_which(record)}",
    )


def settings_table(record: dict[str, Any]) -> str:
    """Markdown for the seeds of one model: a row for each setting and learning rate."""
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
        [model_name(record["rows"][0]["model"]), "learning rate", "solved", "above 0.9", "mean", "lowest"],
        rows,
        f"{conditions(record)}.",
    )


def rates_table(record: dict[str, Any]) -> str:
    """Markdown for the accuracy at each learning rate: a row for each model and size with several."""
    rows: list[Any] = [row for row in headline(record["rows"]) if len(row["lrs"]) > 1]
    rates = sorted({rate for row in rows for rate in row["lrs"]})
    lines = []
    for row in rows:
        runs = [record["runs"][name] for name in row["names"]]
        scores = [[run["best"] for run in runs if run["lr"] == rate and "best" in run] for rate in rates]
        lines.append((model_name(row["model"]), _size(row), *(of_seeds(found) if found else "" for found in scores)))
    return markdown("ll" + "l" * len(rates), ["model", "size", *(f"learning rate {rate:g}" for rate in rates)], lines)


def epochs_table(record: dict[str, Any]) -> str:
    """Markdown for the accuracy of one model after every epoch: a row for each setting."""
    runs = list(record["runs"].values())
    last = max(round(run["curve"][-1][0] / run["steps_per_epoch"]) for run in runs)
    rows = []
    for run in sorted(runs, key=lambda run: ("variant" in run, -run["best"])):
        reached = {round(step / run["steps_per_epoch"]): score for step, score in run["curve"]}
        scores = (f"{reached[epoch]:.3f}" if epoch in reached else "" for epoch in range(1, last + 1))
        rows.append((_setting(run), f"{run['lr']:g}", *scores))
    epochs = [f"after epoch {epoch}" for epoch in range(1, last + 1)]
    model = model_name(runs[0]["model"])
    return markdown("l" + "r" * (last + 1), [model, "learning rate", *epochs], rows, f"{conditions(record)}.")


def power(state: int) -> str:
    """Format a state size, as a power of two if it is one."""
    return f"$2^{{{state.bit_length() - 1}}}$" if state & (state - 1) == 0 else f"{state:,}"


def _cell(row: dict[str, Any] | None, runs: dict[str, Any]) -> str:
    if row is None:
        return ""
    cache = f", cache {power(row['state'])}" if has_cache(row["model"]) else ""
    if row["best"] is None:
        begun = [runs[name]["curve"][-1] for name in row["unfinished"] if runs[name].get("curve")]
        if not begun:
            return "unfinished" + cache
        step, score = max(begun)
        return f"unfinished; after {step:,} updates {score:.3f}{cache}"
    over = row["runs"] - len(row["unfinished"])
    rates = f" of {len(row['lrs'])} learning rates" if len(row["lrs"]) > 1 else ""
    several = f" (×{over}{rates}, mean {row['mean']:.3f})" if over > 1 else ""
    best = f"**{row['best']:.3f}**" if row["best"] >= NEAR_PERFECT else f"{row['best']:.3f}"
    return best + several + cache


def _size(row: dict[str, Any]) -> str:
    state = "cache" if has_cache(row["model"]) else "state"
    return f"d {row['hidden_size']}{depth(row)}, {state} {power(row['state'])}"


def _setting(found: dict[str, Any]) -> str:
    return f"`{found['variant']}`" if found.get("variant") else "preset"


def depth(row: dict[str, Any]) -> str:
    """Return `` (2 layers)``, or an empty string for one layer."""
    return "" if row["layers"] == 1 else f" ({row['layers']} layers)"
