"""The paper's claims about context-dependent recall, and the verdicts of the results."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from tools.tables.effort import Effort, below, effort, is_over, less_tried
from tools.tables.markdown import markdown
from tools.tables.recall import NEAR_PERFECT, depth, power
from tools.tables.wording import CLAIM, NO, NOT_RUN, listed, not_decided, yes

from swila.experiments.catalogue import has_cache
from swila.experiments.catalogue import title as model_name
from swila.experiments.cdar.presets import PRESETS
from swila.experiments.recall.summary import headline, mean_over_rates

TARGET, STATE = "temporal-swila", 4096
PAPER = PRESETS["paper"]
_EPOCHS = PAPER.training.steps / (PAPER.train_examples // PAPER.training.batch_size)
STEP = 0.5  # a gain between two evaluations that counts as a sharp transition
MARGIN = 0.1  # between means over learning rates

Row = dict[str, Any]
Runs = dict[str, dict[str, Any]]


def recall_claims(
    record: dict[str, Any], longer: dict[str, Any] | None = None, settings: dict[str, Any] | None = None
) -> str:
    """Markdown with a verdict on each of the paper's claims about CDAR.

    Args:
        record: The results.
        longer: Runs with more epochs, reported beside the others.
        settings: Runs with other values of the settings. If settings were explored for only one side of a comparison,
            that is a reservation.
    """
    rows: list[Any] = [row for row in headline(record["rows"]) if row["best"] is not None]
    recurrent = [row for row in rows if not has_cache(row["model"])]
    single = [row for row in recurrent if row["layers"] == 1]
    runs = record["runs"]
    explored = {run["model"] for run in settings["runs"].values() if run.get("variant")} if settings else set()
    claims = [
        (
            "5.2, figure 2a",
            "Temporal SwiLA with one head of D = 32 and 4 mixtures (state $2^{12}$) is the smallest configuration with "
            "near-perfect accuracy.",
            _smallest(recurrent, runs, explored) + _with_more(longer, TARGET),
        ),
        (
            "5.2, figure 2a",
            "Mixtures with temporal priors are crucial.",
            _temporal([row for row in single if row["state"] == STATE], runs, explored),
        ),
        (
            "5.2, figure 2a",
            "All other recurrent models (nearly) solve the task with one layer as the state grows.",
            _others(single, runs),
        ),
        (
            "5.2, figure 2a",
            "The Transformer needs two layers.",
            _depths([row for row in rows if row["model"] == "attention"], runs) + _with_more(longer, "attention"),
        ),
        (
            "App. E.2, figure S2",
            "The mean over learning rates shows the same, with the largest gain for Temporal SwiLA.",
            _means([row for row in single if row["state"] == STATE], runs, explored),
        ),
        (
            "App. E.2",
            "Learning shows sharp, step-like transitions.",
            _steps(run for row in rows for name in row["names"] if is_over(run := runs[name])),
        ),
        (
            "5.2",
            "The task needs context to persist, which short convolutions cannot do.",
            "not run separately; all models here have a short convolution of width 2",
        ),
    ]
    return markdown(
        "lll",
        CLAIM,
        claims,
        f"Near-perfect means an accuracy of {NEAR_PERFECT} or more. Means differ if they are more than {MARGIN} apart. "
        f"A transition is sharp if accuracy rises by {STEP} or more between two evaluations, which are an epoch apart. "
        f"The paper trains every model and size for {_EPOCHS:.0f} epochs with {len(PAPER.lrs)} learning rates and "
        f"{PAPER.seeds} seeds. As in the paper, a run counts with its best evaluation on the test set.",
    )


def _effort(rows: Iterable[Row], runs: Runs) -> Effort:
    return effort(runs[name] for row in rows for name in row["names"])


def _unlike_the_paper(efforts: list[Effort]) -> list[str]:
    return below(efforts, PAPER.lrs, PAPER.seeds, _EPOCHS)


def _exploration(explored: set[str], others: Iterable[Row]) -> list[str]:
    """Return a reservation if settings were explored for Temporal SwiLA and not for the others."""
    if TARGET in explored and not {row["model"] for row in others} <= explored:
        return [f"settings explored on {model_name(TARGET)} alone, by test accuracy"]
    return []


def _smallest(rows: list[Row], runs: Runs, explored: set[str]) -> str:
    target = [row for row in rows if (row["model"], row["state"], row["layers"]) == (TARGET, STATE, 1)]
    others = [row for row in rows if row["state"] <= STATE and row not in target]
    if not target or not others:
        return NOT_RUN
    ours, theirs = _effort(target, runs), [_effort([row], runs) for row in others]
    told = f"{_list(target)}; others up to {power(STATE)}: {_list(others)}{_in_common(target[0], others, runs)}"
    if max(row["best"] for row in others) >= NEAR_PERFECT:
        return f"{NO}: {told}"
    if target[0]["best"] < NEAR_PERFECT:
        lacking = _unlike_the_paper([ours])
        return f"{not_decided(lacking) if lacking else NO}: {told}"
    reservations = less_tried(model_name(TARGET), ours, theirs) + _unlike_the_paper([ours, *theirs])
    baselines = [row for row in others if row["model"] != TARGET]
    return f"{yes(reservations + _exploration(explored, baselines))}: {told}"


def _temporal(rows: list[Row], runs: Runs, explored: set[str]) -> str:
    """SwiLA with temporal priors beside the same without, at one state size."""
    found = {row["model"]: row for row in rows}
    if not {TARGET, "swila"} <= found.keys():
        return NOT_RUN
    ours, plain = found[TARGET], found["swila"]
    efforts = [_effort([row], runs) for row in (ours, plain)]
    told = f"at {power(STATE)} {ours['best']:.3f} with them, {plain['best']:.3f} without"
    if ours["best"] >= NEAR_PERFECT > plain["best"]:
        reservations = less_tried(model_name(TARGET), efforts[0], efforts[1:], "SwiLA") + _unlike_the_paper(efforts)
        return f"{yes(reservations + _exploration(explored, [plain]))}: {told}"
    lacking = _unlike_the_paper(efforts)
    unclear = lacking and ours["best"] < NEAR_PERFECT and plain["best"] < NEAR_PERFECT
    return f"{not_decided(lacking) if unclear else NO}: {told}"


def _in_common(target: Row, others: list[Row], runs: Runs) -> str:
    """The same comparison on the learning rates and seeds that every configuration has."""
    shared = _shared([target, *others], runs)
    if not shared:
        return ""
    best = [max(scores for _, scores in _of(row, runs, shared)) for row in (target, *others)]
    which = ", ".join(f"learning rate {rate:g} seed {seed}" for rate, seed in sorted(shared))
    return f"; with what all were trained with ({which}) {best[0]:.3f} against at most {max(best[1:]):.3f}"


def _shared(rows: list[Row], runs: Runs) -> set[tuple[float, int]]:
    """Return the learning rates and seeds with which all configurations have finished runs."""
    tried = [{(run["lr"], run["seed"]) for name in row["names"] if is_over(run := runs[name])} for row in rows]
    return set.intersection(*tried) if tried else set()


def _of(row: Row, runs: Runs, which: set[tuple[float, int]]) -> list[tuple[float, float]]:
    """Return learning rate and score of a row's runs with the given learning rates and seeds."""
    own = (runs[name] for name in row["names"])
    return [(run["lr"], run["best"]) for run in own if is_over(run) and (run["lr"], run["seed"]) in which]


def _with_more(record: dict[str, Any] | None, model: str) -> str:
    """Report the accuracy of runs with more epochs, finished or not."""
    told = []
    for run in record["runs"].values() if record else ():
        if run["model"] == model and run["curve"]:
            deep = f", {run['num_layers']} layers" if run["num_layers"] > 1 else ""
            epochs = run["planned_steps"] / run["steps_per_epoch"]
            step, score = run["curve"][-1]
            so_far = f"{score:.3f} after {step / run['steps_per_epoch']:.0f} epochs (unfinished)"
            found = f"{run['best']:.3f} in {run['seconds']:.0f} s" if is_over(run) else so_far
            which = f"d {run['hidden_size']}{deep}, learning rate {run['lr']:g}"
            told.append(f"; with {epochs:.0f} epochs ({which}) {found}")
    return "".join(told)


def _others(rows: list[Row], runs: Runs) -> str:
    largest: dict[str, Row] = {}
    for row in rows:
        if row["model"] != TARGET and row["state"] >= largest.get(row["model"], row)["state"]:
            largest[row["model"]] = row
    if not largest:
        return NOT_RUN
    told = _list(list(largest.values()))
    unsolved = [row for row in largest.values() if row["best"] < NEAR_PERFECT]
    if not unsolved:
        return f"{yes()}: {told}"
    lacking = _unlike_the_paper([_effort([row], runs) for row in unsolved])
    if small := [model_name(row["model"]) for row in unsolved if row["hidden_size"] < max(PAPER.hidden_sizes)]:
        lacking.append(f"less than the paper's largest state for {', '.join(small)}")
    return f"{not_decided(lacking) if lacking else NO}: {told}"


def _depths(rows: list[Row], runs: Runs) -> str:
    by_depth = {layers: [row for row in rows if row["layers"] == layers] for layers in (1, 2)}
    if not all(by_depth.values()):
        return NOT_RUN
    one, two = (max(row["best"] for row in by_depth[layers]) for layers in (1, 2))
    efforts = [_effort(by_depth[layers], runs) for layers in (1, 2)]
    told = f"{one:.3f} with one layer, {two:.3f} with two"
    if one >= NEAR_PERFECT:
        return f"{NO}: {told}"
    lacking = _unlike_the_paper([_effort([row], runs) for row in rows])
    if two >= NEAR_PERFECT:
        return f"{yes(less_tried('two layers', efforts[1], efforts[:1], 'one') + lacking)}: {told}"
    return f"{not_decided(lacking) if lacking else NO}: {told}"


def _means(rows: list[Row], runs: Runs, explored: set[str]) -> str:
    """Compare means at one state size, over the learning rates and seeds that all models have."""
    shared = _shared(rows, runs)
    rates = {rate for rate, _ in shared}
    if len(rows) < 2 or len(rates) < 2 or TARGET not in {row["model"] for row in rows}:
        return f"{NOT_RUN}: the models have fewer than two learning rates in common"
    means = {row["model"]: mean_over_rates(_of(row, runs, shared)) or 0.0 for row in rows}
    others = [row for row in rows if row["model"] != TARGET]
    tried = Effort({rate: sum(rate == each for each, _ in shared) for rate in rates}, _effort(rows, runs).epochs)
    ordered = sorted(((mean, model) for model, mean in means.items()), reverse=True)
    told = ", ".join(f"{model_name(model)} {mean:.3f}" for mean, model in ordered)
    over = f"at {power(STATE)} over the learning rates {listed(f'{rate:g}' for rate in sorted(rates))}, {told}"
    if means[TARGET] > max(means[row["model"]] for row in others) + MARGIN:
        return f"{yes(_unlike_the_paper([tried]) + _exploration(explored, others))}: {over}"
    return f"{NO}: {over}"


def _steps(runs: Iterable[dict[str, Any]]) -> str:
    """Count the near-perfect runs with a sharp transition between two evaluations."""
    gains, models = [], set()
    for run in runs:
        if run["best"] >= NEAR_PERFECT:
            models.add(run["model"])
            scores = [0.0, *(score for _, score in run["curve"])]
            gains.append(max(later - earlier for earlier, later in pairwise(scores)))
    if not gains:
        return f"{NOT_RUN}: no run is near-perfect"
    sharp = sum(gain >= STEP for gain in gains)
    word = yes() if sharp == len(gains) else NO
    whose = listed(sorted(model_name(model) for model in models))
    return f"{word}: {sharp} of {len(gains)} near-perfect runs (of {whose}) have a sharp transition"


def _list(rows: list[Row]) -> str:
    ordered = sorted(rows, key=lambda row: row["state"])
    return ", ".join(
        f"{model_name(row['model'])} at {power(row['state'])}{depth(row)} {row['best']:.3f}" for row in ordered
    )
