"""``swila plot``: figures from existing runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from swila.cli.options import fail, needs_transformers, one_line_errors

if TYPE_CHECKING:
    from rich.console import Console

    from swila.experiments.experiment import Experiment
    from swila.experiments.record import Record

RUNS = "directories of swila run or swila pretrain, or their results.json"
BENCHMARKS = "a results file of swila bench training or swila bench generation"


def plot(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Directories of swila run or swila pretrain, or their results.json; several of one kind are merged. "
            "Or one results file of swila bench training or swila bench generation."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the figures. Default: the directory of runs, the first one of an experiment; "
            "runs/figures for results files and for several pretraining runs."
        ),
    ] = None,
) -> None:
    """Draw the figures of an experiment, of pretraining or of a benchmark of throughput.

    Figures 1C and S1 of the paper for softmax-regression; 2a, S2, accuracy and routing for cdar; 2b for regbench. For
    pretraining runs, the loss and the perplexity against tokens; of models with mixtures also the routing, as in figure
    S5, as means over the layers and for each layer. For swila bench training and swila bench generation, throughput and
    peak memory as in figures S3 and S4. Each as PNG and SVG. Unfinished runs are drawn as far as they are.
    With --out, the merged results.json of runs is written too.
    """
    from rich.console import Console

    from swila.cli.plot_pretraining import is_of_pretraining, plot_pretraining
    from swila.cli.results import draw, show, why_no_figures
    from swila.experiments.experiment import RESULTS
    from swila.training.json_files import write_json

    if reason := why_no_figures():
        fail(f"no figures: {reason}")
    console = Console()
    with one_line_errors():
        if _plot_throughput(console, runs, out):
            return
        if is_of_pretraining(runs):
            plot_pretraining(console, runs, out)
            return
        experiment, records = load(runs)
        record = experiment.join(records)
        directory = runs[0] if len(runs) == 1 and runs[0].is_dir() else None
        target = out or (runs[0] if runs[0].is_dir() else Path("runs") / "figures")
        target.mkdir(parents=True, exist_ok=True)
        if out is not None:
            write_json(out / RESULTS, dict(record))
        show(console, experiment, record)
        draw(console, experiment, record, target, directory)


def _plot_throughput(console: Console, paths: list[Path], out: Path | None) -> bool:
    """Draw the figure of a benchmark of throughput; returns False if the paths are of something else."""
    from swila.training.json_files import read_json

    records = []
    for path in paths:
        try:
            records.append(read_json(path) if path.is_file() else {})
        except ValueError:
            records.append({})
    if not any(str(record.get("benchmark", "")).startswith("throughput-") for record in records):
        return False
    needs_transformers()
    from swila.benchmarks.throughput.figures import draw, is_throughput

    if len(paths) > 1 or not is_throughput(records[0]):
        raise ValueError(f"runs must be {BENCHMARKS}, and no other, got {', '.join(map(str, paths))}")
    target = out or Path("runs") / "figures"
    target.mkdir(parents=True, exist_ok=True)
    for files in draw(records[0], target):
        console.print(f"figure in {files[0]} (and {files[1].name})", markup=False, highlight=False, soft_wrap=True)
    return True


def load(paths: list[Path]) -> tuple[Experiment[Any], list[Record[Any]]]:
    """Return the experiment of some directories or results files, and the record of each."""
    from swila.experiments.by_name import by_name
    from swila.experiments.registry import EXPERIMENTS
    from swila.training.json_files import read_json
    from swila.training.run_directory import is_run

    records: list[Record[Any]] = []
    for path in paths:
        known = path / "experiment.json"
        if path.is_dir() and known.exists():
            claimed = read_json(known)
            if not {"experiment", "preset"} <= claimed.keys():
                raise ValueError(f"{known} must name an experiment and a preset, got {', '.join(claimed) or 'nothing'}")
            records.append(by_name("experiment", claimed["experiment"], EXPERIMENTS).record(claimed["preset"], path))
            continue
        if not path.exists():
            raise ValueError(f"{path} does not exist; runs are {RUNS}")
        if path.is_dir():
            inside = sorted(each.parent.name for each in path.glob("*/experiment.json"))
            hint = f"; there are some in it: {', '.join(inside)}" if inside else ""
            if is_run(path):
                hint = f", which is one run of an experiment; its directory is {path.resolve().parent}"
            raise ValueError(f"runs must be {RUNS}, got {path}{hint}")
        try:
            record = read_json(path)
        except ValueError:
            record = {}
        if not {"experiment", "runs", "rows"} <= record.keys():
            raise ValueError(f"runs must be {RUNS}, got {path}")
        records.append(cast("Record[Any]", record))
    names = {record["experiment"] for record in records}
    if len(names) > 1:
        raise ValueError(f"runs must be of one experiment, got {' and '.join(sorted(names))}")
    return by_name("experiment", names.pop(), EXPERIMENTS), records
