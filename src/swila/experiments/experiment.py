"""What an experiment of the paper is to the command line: runs in a directory, a table, a results file, figures."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from swila.experiments.by_name import by_name
from swila.experiments.sweep import claim, distinct, run_all
from swila.experiments.training_run import TrainingRun
from swila.training import RunDirectory, read_status
from swila.training.json_files import first_difference, write_json
from swila.training.run_directory import runs_below

RESULTS = "results.json"
logger = logging.getLogger("swila")


class Column(NamedTuple):
    """A column of the table: its heading, and what stands there for a row; left out if nothing does for any."""

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

    def record(self, preset: str, directory: Path) -> dict[str, Any]:
        """All that is in a directory."""
        size = by_name("preset", preset, self.presets)
        runs = runs_in(directory)
        if not runs:
            raise ValueError(f"{directory} holds no runs yet")
        found = self._ordered(_readable(runs, directory))
        if not found:
            raise ValueError(f"{directory} holds no run that can be read")
        return {
            "experiment": self.name,
            "preset": preset,
            **_where(RunDirectory(directory / name).environment for name in found),
            "device": next((run["device"] for run in found.values() if "device" in run), "cpu"),
            "task": json.loads(json.dumps(asdict(runs[0].task))),  # as it comes back from a file
            **self.facts(size),
            "rows": self.summarize(list(found.values())),
            "runs": found,
        }

    def run(self, runs: Sequence[TrainingRun], directory: Path, preset: str, **options: Any) -> dict[str, Any]:
        """Run some runs, of a preset or made from one, in a directory that ``swila status`` and ``plot`` know.

        Args:
            runs: all with names of their own.
            directory: new, or of the same experiment and preset.
            preset: that the runs were made from.
            options: of :func:`swila.experiments.sweep.run_all`.
        """
        claim(directory, {"experiment": self.name, "preset": preset})
        run_all(runs, directory, **options)
        return self.finish(preset, directory)

    def finish(self, preset: str, directory: Path) -> dict[str, Any]:
        """The record of a directory, written into it."""
        record = self.record(preset, directory)
        write_json(directory / RESULTS, record)
        return record

    def join(self, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One record out of several; of a run that is in several of them, one that is over counts, else the longest."""
        runs: dict[str, Any] = {}
        places: list[dict[str, Any]] = []
        for record in records:
            if difference := first_difference(records[0].get("task"), record.get("task"), "task"):
                raise ValueError(f"runs must be of one task to be joined, but {difference}")
            for name, run in record["runs"].items():
                if "curve" not in run:
                    raise ValueError("runs must be of this version of swila, got a results file of another one")
                for key in ("planned_steps", "precision", "train_examples", "parameters"):
                    if name in runs and runs[name].get(key) != run.get(key):
                        raise ValueError(f"runs must be trained alike to be joined, but {name} has another {key}")
                if name not in runs or _how_far(run) > _how_far(runs[name]):
                    runs[name] = run
            places += [record["environment"], *record.get("other_environments", [])]
        runs = self._ordered(runs.values())
        kept = {key: value for key, value in records[0].items() if key != "other_environments"}
        return {**kept, **_where(places), "rows": self.summarize(list(runs.values())), "runs": runs}

    def _ordered(self, runs: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """By name; by model, size, variant, learning rate and seed, models of one's own last."""
        order = list(self.models)

        def place(run: dict[str, Any]) -> tuple[Any, ...]:
            model = order.index(run["model"]) if run["model"] in order else len(order)
            size = [int(n) for n in re.findall(r"\d+", run["size"])]
            return model, run["model"], size, run.get("variant", ""), run["lr"], run["seed"]

        return {run["name"]: run for run in sorted(runs, key=place)}


def _readable(runs: Sequence[TrainingRun], directory: Path) -> Iterator[dict[str, Any]]:
    """The runs in a few words, without those of which no model can be made: they are not to hide the others."""
    for run in runs:
        try:
            yield _compact(run, directory)
        except (ValueError, RuntimeError) as error:
            logger.warning("%s is left out: %s", directory / run.name, error)


def _where(environments: Iterable[dict[str, Any]]) -> dict[str, Any]:
    first, *more = distinct(environments)
    return {"environment": first, **({"other_environments": more} if more else {})}


def _how_far(run: dict[str, Any]) -> tuple[bool, int]:
    """Whether a run of a record is over, and its last step."""
    return "best" in run, run.get("step", 0)


def runs_in(directory: Path) -> list[TrainingRun]:
    """All runs of a directory, over or not; one that another version left, and this one cannot read, is passed over."""
    found = []
    for path in runs_below(directory):
        try:
            own = RunDirectory(path)
            _ = own.metrics(), own.environment, own.result
            found.append(TrainingRun.from_config(own.config))
        except (KeyError, TypeError, ValueError, OSError) as error:
            logger.warning("%s is passed over: it cannot be read (%s: %s)", path, type(error).__name__, error)
    return found


def _compact(run: TrainingRun, directory: Path) -> dict[str, Any]:
    own = RunDirectory(directory / run.name)
    status = read_status(own.path)
    seen = "validation" if run.validation_examples else "test"
    score = f"{seen}/{run.kind.objective(run.task).score}"
    curve = [[line["step"], line[score]] for line in own.metrics()]
    hidden = ("pid", "host", "metric") if "best" in status else ("pid", "host", "metric", "steps")
    told = {key: status[key] for key in status if key not in hidden}
    # an evaluation is written down at once, progress every few seconds: a run that was killed may be further than noted
    if "best" not in told and curve and curve[-1][0] > told.get("step", 0):
        told["step"], told["score"] = curve[-1]
    return {**run.facts(), **told, "curve": curve}


def lengths(runs: Iterable[dict[str, Any]], what: str) -> list[str]:
    """In words, how many examples runs are trained on, if all on as many, and for how many epochs.

    Args:
        runs: of a record.
        what: how the examples are called.
    """
    shown = [run for run in runs if "planned_steps" in run]  # results of an earlier version may not say
    found = sorted({run["planned_steps"] / run["steps_per_epoch"] for run in shown})
    counts = {run["train_examples"] for run in shown}
    told = [f"{counts.pop():,} training {what}"] if len(counts) == 1 else []
    if found:
        span = f"{found[0]:.3g}" if f"{found[0]:.3g}" == f"{found[-1]:.3g}" else f"{found[0]:.3g} to {found[-1]:.3g}"
        told.append(f"{span} epoch{'' if span == '1' else 's'}")
    return told


def choose_by_validation(runs: Sequence[dict[str, Any]], key: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each value of ``key``: the seeds of the learning rate with the lowest mean validation loss, tested.

    One learning rate for all seeds of a row, since a seed that tried fewer than the others would count with a worse
    one. Runs that are not over are named in ``unfinished``, those that diverged in ``diverged``; the best weights of
    these count, and a learning rate with a seed that has none is taken only if all have such seeds. Runs of one row
    must have the same number of steps before them.
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        row = rows.setdefault(tuple(run[name] for name in key), {name: run[name] for name in key} | {"runs": []})
        row["runs"].append(run)
    table = []
    for row in rows.values():
        members = row.pop("runs")
        if len(planned := {run.get("planned_steps") for run in members}) > 1:
            name = " ".join(str(value) for value in row.values())
            raise ValueError(f"runs of {name} must be trained alike to be compared, got {planned} steps")
        judged: dict[float, list[dict[str, Any]]] = {}
        for run in sorted(members, key=lambda run: run["seed"]):
            if run.get("best") is not None:
                judged.setdefault(run["lr"], []).append(run)
        without = {run["lr"] for run in members if run["status"] == "diverged" and run.get("best") is None}
        chosen = min(judged.values(), key=lambda found: (found[0]["lr"] in without, _loss(found)), default=[])
        scores = [run["best"] for run in chosen]
        metrics = chosen[0]["test"] if chosen else {}
        table.append(
            row
            | {"state": members[0]["state"], "parameters": members[0]["parameters"]}
            | {"mean": fmean(scores) if scores else None, "scores": scores}
            | {"seeds": [run["seed"] for run in chosen], "lr": chosen[0]["lr"] if chosen else None}
            | {"validation_loss": _loss(chosen) if chosen else None}
            | {"chosen": [run["name"] for run in chosen]}
            | {"test": {name: fmean(run["test"][name] for run in chosen) for name in metrics}}
            | {"tests": [run["test"] for run in chosen]}
            | {"best_epochs": [round(run["best_step"] / run["steps_per_epoch"], 1) for run in chosen]}
            | {"runs": len(members), "unfinished": [run["name"] for run in members if "best" not in run]}
            | {"diverged": [run["name"] for run in members if run["status"] == "diverged"]}
        )
    return table


def _loss(runs: Sequence[dict[str, Any]]) -> float:
    return fmean(run["validation"]["loss"] for run in runs)


def spread(scores: Sequence[float]) -> str:
    """``0.912`` of one seed, ``0.912 (0.905–0.917)`` of several."""
    if not scores:
        return "not over"
    ends = f" ({min(scores):.3f}–{max(scores):.3f})" if len(scores) > 1 else ""
    return f"{fmean(scores):.3f}{ends}"
