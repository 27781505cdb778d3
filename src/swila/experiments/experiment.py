"""What an experiment of the paper is to the command line: runs in a directory, a table, a results file, figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from swila.experiments.sweep import distinct
from swila.experiments.training_run import TrainingRun
from swila.training import RunDirectory
from swila.training.run_directory import write_json

RESULTS = "results.json"


class Column(NamedTuple):
    """A column of the table: its heading, and what stands there for a row."""

    heading: str
    cell: Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class Experiment:
    """One of the paper's experiments.

    A *record* holds all that came out of one, as JSON (``results.json``): ``runs`` by name, with their configuration in
    a few words, result and curve; ``rows`` that sum them up; where they ran. Tables and figures are made from it alone.

    Attributes:
        name: as in ``swila run NAME``.
        title: in a few words.
        presets: its sizes.
        models: how models are called.
        summarize: from runs to rows.
        facts: what else a record of a preset holds, yardsticks as a rule.
        columns: of the table.
        caption: of the table, from a record.
        draw: the figures of a record, from its directory if something else of it is needed; in directory ``out``.
    """

    name: str
    title: str
    presets: Mapping[str, Any]
    models: Mapping[str, str]
    summarize: Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]]
    facts: Callable[[Any], dict[str, Any]]
    columns: Sequence[Column]
    caption: Callable[[dict[str, Any]], str]
    draw: Callable[[dict[str, Any], Path, Path | None], list[list[Path]]]

    def record(self, preset: str, directory: Path, device: str | None = None) -> dict[str, Any]:
        """All that is in a directory."""
        order = list(self.models)
        runs = sorted(runs_in(directory), key=lambda run: (order.index(run.label), run.size_order, run.training.lr))
        if not runs:
            raise ValueError(f"{directory} holds no runs yet")
        first, *more = distinct(RunDirectory.at(directory / run.name).environment for run in runs)
        found = {run.name: _compact(run, directory) for run in runs}
        return {
            "experiment": self.name,
            "preset": preset,
            "environment": first,
            **({"other_environments": more} if more else {}),
            "device": device or ("cuda" if first["gpus"] else "cpu"),
            **self.facts(self.presets[preset]),
            "rows": self.summarize(list(found.values())),
            "runs": found,
        }

    def finish(self, preset: str, directory: Path, device: str) -> dict[str, Any]:
        """The record of a directory, written into it."""
        record = self.record(preset, directory, device)
        write_json(directory / RESULTS, record)
        return record

    def join(self, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One record out of several; of a run that is in several of them, one that is over counts."""
        runs: dict[str, Any] = {}
        places: list[dict[str, Any]] = []
        for record in records:
            runs |= {name: run for name, run in record["runs"].items() if "best" not in runs.get(name, {})}
            places += [record["environment"], *record.get("other_environments", [])]
        order = list(self.models)
        runs = dict(sorted(runs.items(), key=lambda item: (order.index(item[1]["model"]), item[1]["state"])))
        first, *more = distinct(places)
        found = {key: value for key, value in records[0].items() if key not in ("rows", "runs", "other_environments")}
        found |= {"environment": first, **({"other_environments": more} if more else {})}
        return {**found, "rows": self.summarize(list(runs.values())), "runs": runs}


def runs_in(directory: Path) -> list[TrainingRun]:
    """All runs of a directory, over or not."""
    found = [RunDirectory.at(path.parent) for path in sorted(directory.glob("*/config.json"))]
    return [TrainingRun.from_config(each.config) for each in found]


def _compact(run: TrainingRun, directory: Path) -> dict[str, Any]:
    own = RunDirectory.at(directory / run.name)
    status = RunDirectory.status(own.path)
    seen = "validation" if run.validation_examples else "test"
    score = f"{seen}/{run.kind.objective(run.task).score}"
    curve = [[line["step"], line[score]] for line in own.metrics()]
    told = {key: status[key] for key in status if key not in ("pid", "host", "metric")}
    return {**run.facts(), **told, "curve": curve}


def choose_by_validation(runs: Sequence[dict[str, Any]], key: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each value of ``key``: of each seed the learning rate with the lowest validation loss, on the test set.

    Runs that are not over are named in ``not_over``, those that diverged in ``diverged``; their best weights count.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        row = rows.setdefault(tuple(run[name] for name in key), {name: run[name] for name in key} | {"runs": []})
        row["runs"].append(run)
    table = []
    for row in rows.values():
        members = row.pop("runs")
        judged = [run for run in members if run.get("best") is not None]
        chosen = [
            min((run for run in judged if run["seed"] == seed), key=lambda run: run["validation"]["loss"])
            for seed in sorted({run["seed"] for run in judged})
        ]
        scores = [run["best"] for run in chosen]
        metrics = chosen[0]["test"] if chosen else {}
        table.append(
            row
            | {"state": members[0]["state"], "parameters": members[0]["parameters"]}
            | {"mean": fmean(scores) if scores else None, "scores": scores}
            | {"seeds": [run["seed"] for run in chosen], "lrs": [run["lr"] for run in chosen]}
            | {"test": {name: fmean(run["test"][name] for run in chosen) for name in metrics}}
            | {"tests": [run["test"] for run in chosen]}
            | {"best_epochs": [round(run["best_step"] / run["steps_per_epoch"], 1) for run in chosen]}
            | {"runs": len(members), "not_over": [run["name"] for run in members if "best" not in run]}
            | {"diverged": [run["name"] for run in members if run["status"] == "diverged"]}
        )
    return table


def spread(scores: Sequence[float]) -> str:
    """``0.912`` of one seed, ``0.912 (0.905–0.917)`` of several."""
    if not scores:
        return ""
    ends = f" ({min(scores):.3f}–{max(scores):.3f})" if len(scores) > 1 else ""
    return f"{fmean(scores):.3f}{ends}"
