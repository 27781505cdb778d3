"""``swila plot`` of pretraining runs: a table, the figures, and the merged results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from swila.pretraining.record import Record, RunRecord

RESULTS = "results.json"
HEADINGS = ("steps", "tokens", "final loss", "best perplexity", "at step", "tokens/s")


def is_of_pretraining(paths: Sequence[Path]) -> bool:
    """Whether paths are pretraining runs or their results; ValueError if only some of them are."""
    from swila.cli.plot import RUNS

    kinds = {path: _is_of_pretraining(path) for path in paths}
    if len(set(kinds.values())) < 2:
        return all(kinds.values())
    ours = next(path for path, pretraining in kinds.items() if pretraining)
    other = next(path for path, pretraining in kinds.items() if not pretraining)
    if not other.exists():
        raise ValueError(f"{other} does not exist; runs are {RUNS}")
    raise ValueError(
        f"runs must be of pretraining or of one experiment, got both: {ours} is of swila pretrain, {other} is not"
    )


def plot_pretraining(console: Console, paths: Sequence[Path], out: Path | None) -> None:
    """Print the table of pretraining runs, draw their figures, and write their record if ``out`` is given."""
    from swila.pretraining.figures import draw
    from swila.pretraining.record import check_record, join, pretraining_runs, read_record
    from swila.training.json_files import read_json, write_json

    found = [run for path in paths if path.is_dir() for run in pretraining_runs(path)]
    records = [read_record(found)] if found else []
    record = join([*records, *(check_record(read_json(path), path) for path in paths if path.is_file())])
    if not any(run["curves"] for run in record["runs"].values()):
        names = ", ".join(record["runs"])
        raise ValueError(f"runs must have metrics to be drawn, got {names} without any yet; swila status shows runs")
    single = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
    target = out or single or Path("runs") / "figures"
    target.mkdir(parents=True, exist_ok=True)
    if out is not None:
        write_json(out / RESULTS, record, indent=None)
    show(console, record)
    for files in draw(record, target):
        console.print(f"figure in {files[0]} (and {files[1].name})", markup=False, highlight=False, soft_wrap=True)


def show(console: Console, record: Record) -> None:
    """Print the table of pretraining runs."""
    from swila.cli.status import make_table
    from swila.pretraining.figures import different_data

    runs = list(record["runs"].values())
    rows = [(run["name"], run["status"], *_cells(run)) for run in runs]
    console.print(make_table(console, ("run", "status", *HEADINGS), rows))
    notes = [f"{run['name']}: no metrics yet" for run in runs if not run["curves"]]
    notes += [f"{run['name']} failed: {run['error'].partition(chr(10))[0]}" for run in runs if "error" in run]
    for note in [*notes, *filter(None, [different_data(runs)])]:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _is_of_pretraining(path: Path) -> bool:
    from swila.pretraining.record import pretraining_runs
    from swila.pretraining.run_status import KIND
    from swila.training.json_files import read_json

    if path.is_dir():
        return not (path / "experiment.json").exists() and bool(pretraining_runs(path))
    try:
        return read_json(path).get("kind") == KIND
    except (ValueError, OSError):
        return False


def _cells(run: RunRecord) -> tuple[str, ...]:
    """Return steps, tokens, final loss, best perplexity, its step and tokens/s; the loss is that of the figure."""
    from swila.plots.smoothing import smooth
    from swila.plots.style import readable, short
    from swila.pretraining.record import LOSS, PERPLEXITY

    losses: Any = smooth(run["curves"].get(LOSS, []))
    scores = run["curves"].get(PERPLEXITY)
    at, best = min(scores, key=lambda point: point[1]) if scores else (0, None)
    speed = run["tokens_per_second"]
    return (
        f"{run['step']:,}" if run["step"] == run["steps"] else f"{run['step']:,}/{run['steps']:,}",
        short(float(f"{run['step'] * run['tokens_per_step']:.3g}")),
        f"{losses[-1][1]:.3f}" if losses else "",
        "" if best is None else readable(best),
        "" if best is None else f"{round(at / run['tokens_per_step']):,}",
        "" if speed is None else f"{speed:,.0f}",
    )
