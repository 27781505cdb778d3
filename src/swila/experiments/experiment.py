"""An experiment: from runs in a directory to a record, a table and figures."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, NotRequired, TypedDict, cast

from swila.experiments.by_name import by_name
from swila.experiments.catalogue import Model
from swila.experiments.record import Environment, Record, References, Row, RunRecord
from swila.experiments.sweep import claim, run_all
from swila.experiments.training_run import Kind, TrainingRun
from swila.training import RunDirectory, read_status
from swila.training.environments import distinct
from swila.training.json_files import first_difference, write_json
from swila.training.run_directory import runs_below

RESULTS = "results.json"
logger = logging.getLogger("swila")


class Column(NamedTuple, Generic[Row]):
    """A column of an experiment's table.

    Attributes:
        heading: Heading of the column.
        cell: Function from a row to the text of its cell. A column whose cells are all empty is not shown.
    """

    heading: str
    cell: Callable[[Row], str]


@dataclass(frozen=True)
class Experiment(Generic[Row]):
    """One of the paper's experiments.

    Attributes:
        name: Name on the command line, ``swila run NAME``.
        title: Title in tables and figures.
        kind: Classes and objective of the runs.
        presets: Presets by name: ``tiny``, ``small`` and ``paper``.
        models: Models of the experiment, in the order of its tables.
        make_runs: Function from the name of a preset, and what replaces its settings, to the runs.
        summarize: Function from runs to rows.
        columns: Columns of the table, after that of the model.
        caption: Function from a record to the caption of the table.
        draw: Function that draws the figures of a record in the directory ``out`` and returns the files of each. The
            third argument is the directory of the runs, None if there is none.
        references: Function from a preset to the scores that models are compared with; none by default.
        keeps_curves: Whether the record keeps the score at every evaluation.
    """

    name: str
    title: str
    kind: Kind
    presets: Mapping[str, Any]
    models: Mapping[str, Model]
    make_runs: Callable[..., list[TrainingRun]]
    summarize: Callable[[Sequence[RunRecord]], list[Row]]
    columns: Sequence[Column[Row]]
    caption: Callable[[Record[Row]], str]
    draw: Callable[[Record[Row], Path, Path | None], list[list[Path]]]
    references: Callable[[Any], References] = lambda preset: {}
    keeps_curves: bool = True

    def record(self, preset: str, directory: Path) -> Record[Row]:
        """The record of all runs in a directory."""
        size = by_name("preset", preset, self.presets)
        runs = runs_in(directory)
        if not runs:
            raise ValueError(f"{directory} holds no runs yet")
        found = self._ordered(self._records(runs, directory))
        if not found:
            raise ValueError(f"{directory} holds no run that can be read")
        return {
            "experiment": self.name,
            "preset": preset,
            **_where(RunDirectory(directory / name).environment for name in found),
            "device": next((run["device"] for run in found.values() if "device" in run), "cpu"),
            "task": json.loads(json.dumps(asdict(runs[0].task))),  # as it comes back from a file
            **self.references(size),
            "rows": self.summarize(list(found.values())),
            "runs": found,
        }

    def run(self, runs: Sequence[TrainingRun], directory: Path, preset: str, **options: Any) -> Record[Row]:
        """Train runs in a directory that ``swila status`` and ``swila plot`` can read; returns the record.

        Args:
            runs: Runs with different names, those of a preset or runs made from them.
            directory: A new directory, or one of the same experiment and preset.
            preset: Name of the preset that the runs were made from.
            options: Options of :func:`swila.experiments.sweep.run_all`.
        """
        claim(directory, {"experiment": self.name, "preset": preset})
        run_all(runs, directory, **options)
        return self.finish(preset, directory)

    def finish(self, preset: str, directory: Path) -> Record[Row]:
        """Write the record of a directory into it, and return it."""
        record = self.record(preset, directory)
        write_json(directory / RESULTS, cast(dict[str, Any], record))
        return record

    def join(self, records: Sequence[Record[Row]]) -> Record[Row]:
        """One record out of several. Of a run that is in several of them, a finished one counts, else the longest."""
        runs: dict[str, RunRecord] = {}
        places: list[Environment] = []
        for record in records:
            if difference := first_difference(records[0].get("task"), record.get("task"), "task"):
                raise ValueError(f"runs must be of one task to be joined, but {difference}")
            for name, run in record["runs"].items():
                if "steps_per_epoch" not in run:
                    raise ValueError("runs must be of this version of swila, got a results file of another one")
                for key in ("planned_steps", "precision", "train_examples", "parameters"):
                    if name in runs and runs[name].get(key) != run.get(key):
                        raise ValueError(f"runs must be trained alike to be joined, but {name} has another {key}")
                if name not in runs or _progress(run) > _progress(runs[name]):
                    runs[name] = run
            places += [record["environment"], *record.get("other_environments", [])]
        joined = records[0].copy()
        joined.pop("other_environments", None)
        joined.update(_where(places))
        joined["runs"] = self._ordered(runs.values())
        joined["rows"] = self.summarize(list(joined["runs"].values()))
        return joined

    def _records(self, runs: Sequence[TrainingRun], directory: Path) -> Iterator[RunRecord]:
        """The records of runs, without those whose model cannot be built: they must not hide the others."""
        for run in runs:
            try:
                yield _record_of_run(run, directory, self.keeps_curves)
            except (ValueError, RuntimeError) as error:
                logger.warning("%s is left out: %s", directory / run.name, error)

    def _ordered(self, runs: Iterable[RunRecord]) -> dict[str, RunRecord]:
        """Runs by name, sorted by model, size, variant, learning rate and seed; unknown models come last."""
        order = list(self.models)

        def place(run: RunRecord) -> tuple[Any, ...]:
            model = order.index(run["model"]) if run["model"] in order else len(order)
            size = [int(n) for n in re.findall(r"\d+", run["size"])]
            return model, run["model"], size, run.get("variant", ""), run["lr"], run["seed"]

        return {run["name"]: run for run in sorted(runs, key=place)}


class _Where(TypedDict):
    environment: Environment
    other_environments: NotRequired[list[Environment]]


def _where(environments: Iterable[Environment]) -> _Where:
    first, *more = distinct(environments)
    return {"environment": first, "other_environments": more} if more else {"environment": first}


def _progress(run: RunRecord) -> tuple[bool, int]:
    """Whether a run is finished, and its last step."""
    return "best" in run, run.get("step", 0)


def runs_in(directory: Path) -> list[TrainingRun]:
    """All runs of a directory, finished or not. A run that this version cannot read is skipped with a warning."""
    found = []
    for path in runs_below(directory):
        try:
            own = RunDirectory(path)
            _ = own.metrics(), own.environment, own.result
            found.append(TrainingRun.from_config(own.config))
        except (KeyError, TypeError, ValueError, OSError) as error:
            logger.warning("%s is passed over: it cannot be read (%s: %s)", path, type(error).__name__, error)
    return found


def _record_of_run(run: TrainingRun, directory: Path, keep_curve: bool) -> RunRecord:
    own = RunDirectory(directory / run.name)
    status = read_status(own.path)
    split = "validation" if run.validation_examples else "test"
    score = f"{split}/{run.kind.objective(run.task).score}"
    curve = [[line["step"], line[score]] for line in own.metrics()]
    hidden = ("pid", "host", "metric") if "best" in status else ("pid", "host", "metric", "steps")
    outcome = {key: status[key] for key in status if key not in hidden}
    # an evaluation is written at once, progress every few seconds: a killed run may be further than its progress file
    if "best" not in outcome and curve and curve[-1][0] > outcome.get("step", 0):
        outcome["step"], outcome["score"] = curve[-1]
    return cast(RunRecord, {**run.facts(), **outcome, **({"curve": curve} if keep_curve else {})})
