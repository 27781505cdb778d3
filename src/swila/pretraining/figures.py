"""The figures of pretraining runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from swila.plots import (
    About,
    RoutingSeries,
    Series,
    loss_figure,
    perplexity_figure,
    routing_layers_figure,
    routing_runs_figure,
)
from swila.plots.routing_over_training import DIAGNOSTICS
from swila.plots.style import readable
from swila.pretraining.appearance import appearances
from swila.pretraining.record import LOSS, PERPLEXITY, ROUTING, Record, RunRecord, layers_of

LOSSES = "training loss"


def draw(record: Record, out: Path) -> list[list[Path]]:
    """Draw the figures of a record in a directory; returns the files of each.

    ``loss`` and ``perplexity``; if there are runs with mixtures, ``routing`` with a curve for each of them, and
    ``routing-layers`` for each, named ``routing-layers-NAME`` if the record has several runs. A figure without a curve
    is not drawn.
    """
    runs, looks = list(record["runs"].values()), appearances(record["runs"].values())
    drawn = []
    for name, metric, what, function in (
        ("loss", LOSS, LOSSES, loss_figure),
        ("perplexity", PERPLEXITY, "validation perplexity", perplexity_figure),
    ):
        shown = [run for run in runs if run["curves"].get(metric)]
        series = [Series(*looks[run["name"]], run["curves"][metric]) for run in shown]
        if series:
            drawn.append(function(series, about(shown, what), out / f"{name}.png"))
    routed = [run for run in runs if any(run["curves"].get(ROUTING + name) for name in DIAGNOSTICS)]
    if routed:
        mixed = [
            RoutingSeries(_with_perplexity(run, looks[run["name"]].label), looks[run["name"]].look, _means(run))
            for run in routed
        ]
        drawn.append(routing_runs_figure(mixed, about(routed, "routing over training"), out / "routing.png"))
    with_layers = [run for run in runs if layers_of(run)]
    for run in with_layers:
        file = "routing-layers" if len(runs) == 1 else f"routing-layers-{run['name'].replace('/', '-')}"
        layers = layers_of(run)
        drawn.append(routing_layers_figure(layers, about([run], "routing of the layers"), out / f"{file}.png"))
    return drawn


def about(runs: Sequence[RunRecord], what: str) -> About:
    """Return what a figure of runs shows: their data and their training."""
    name = f" of {runs[0]['name']}" if len(runs) == 1 else ""
    lost = _not_finite(runs) if what == LOSSES else []
    return About(f"Pretraining{name}: {what}", _data(runs), [*_training(runs), *_unfinished(runs), *lost])


def different_data(runs: Sequence[RunRecord]) -> str | None:
    """Return a warning if runs have different data or tokenizers, otherwise None."""
    if len({run["tokens"].get("tokenizer_sha256") for run in runs}) > 1:
        return "the runs have different tokenizers: their losses and perplexities cannot be compared"
    if len({run["tokens"].get("fingerprint") for run in runs}) > 1:
        return "the runs have different data"
    return None


def _means(run: RunRecord) -> dict[str, Any]:
    """Return the diagnostics as means over the layers, by name."""
    return {name: run["curves"].get(ROUTING + name, []) for name in DIAGNOSTICS}


def _with_perplexity(run: RunRecord, label: str) -> str:
    curve = run["curves"].get(PERPLEXITY)
    return f"{label}\nperplexity {readable(curve[-1][1])}" if curve else label


def _data(runs: Sequence[RunRecord]) -> list[str]:
    told = ["prediction of the next token"]
    told += _each(runs, "sequences of {} tokens", lambda run: f"{run['config']['data']['length']:,}")
    told += _each(runs, "vocabulary of {} tokens", lambda run: f"{run['tokens'].get('vocab_size', 0):,}")
    return [*told, *filter(None, [different_data(runs)])]


def _training(runs: Sequence[RunRecord]) -> list[str]:
    return [
        *_each(runs, "{} steps", lambda run: f"{run['steps']:,}"),
        *_each(runs, "batches of {} tokens", lambda run: f"{run['tokens_per_step']:,}"),
        *_each(runs, "learning rate {}", lambda run: f"{run['config']['optimizer']['lr']:g}"),
        *_each(runs, "seed {}", lambda run: f"{run['config']['seed']}"),
    ]


def _each(runs: Sequence[RunRecord], phrase: str, of: Callable[[RunRecord], str]) -> list[str]:
    """Return a phrase with the values of the runs; none if a configuration lacks the field."""
    try:
        values = dict.fromkeys(of(run) for run in runs)
    except (KeyError, TypeError, ValueError):
        return []
    return [phrase.format(_list(values))]


def _list(words: Iterable[str]) -> str:
    *some, last = words
    return f"{', '.join(some)} or {last}" if some else last


def _unfinished(runs: Sequence[RunRecord]) -> list[str]:
    """Return a phrase about runs without a result, if there are any."""
    late = [f"{run['name']} at step {run['step']:,} of {run['steps']:,}" for run in runs if run["result"] is None]
    return [f"unfinished: {', '.join(late)}"] if late else []


def _not_finite(runs: Sequence[RunRecord]) -> list[str]:
    """Return a phrase about losses that are not drawn, if there are any."""
    lost = [f"{run['not_finite']} of {run['name']}" for run in runs if run["not_finite"]]
    return [f"losses that are not finite are left out: {', '.join(lost)}"] if lost else []
