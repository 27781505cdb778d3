"""``swila inspect``: how a trained model uses its memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swila.cli.options import one_line_errors

if TYPE_CHECKING:
    from rich.console import Console

FILE = "memory.json"


def inspect(
    run: Annotated[Path, typer.Argument(help="Directory of one run of swila run cdar, with its checkpoint.")],
    examples: Annotated[int, typer.Option(help="Number of test sequences.", min=1)] = 64,
) -> None:
    """Analyse the memory of a model trained on CDAR.

    Prints the accuracy for each group of queries. For SwiLA with one layer, also prints at which tokens it writes, at
    which it switches away from a context, and its accuracy when it may not write at one kind of token. The numbers are
    also written to memory.json in the run's directory.
    """
    from rich.console import Console

    from swila.environment import environment
    from swila.experiments.cdar.memory import memory_report
    from swila.experiments.training_run import TrainingRun
    from swila.tasks import CDAR
    from swila.training.json_files import read_json, write_json
    from swila.training.run_directory import is_run

    console = Console()
    with one_line_errors():
        if not is_run(run):
            raise ValueError(f"run must be the directory of one run, with its config.json, got {run}")
        trained = TrainingRun.from_config(read_json(run / "config.json"))
        if not isinstance(trained.task, CDAR):
            raise ValueError(f"run must be one of cdar, got one of {type(trained.task).__name__}")
        model = trained.load(run)
        report = memory_report(model, trained.task, trained.task.examples(examples, "test", trained.data_seed))
        record = {"run": trained.name, "environment": environment(), "device": "cpu", **report}
        write_json(run / FILE, record)
    _show(console, record)
    console.print(f"written to {run / FILE}", markup=False)


def _show(console: Console, record: dict[str, Any]) -> None:
    from rich.table import Table

    from swila.experiments.cdar.memory import MEASURED

    changes = {"nothing": record} | record.get("without_writes", {})
    table = Table(title="accuracy", title_justify="left", box=None)
    for heading in ("not written at", "all", *(f"group {i + 1}" for i in range(len(record["by_group"])))):
        table.add_column(heading, header_style="bold", justify="left" if heading == "not written at" else "right")
    for what, found in changes.items():
        table.add_row(what, *(f"{value:.3f}" for value in (found["accuracy"], *found["by_group"])))
    console.print(table)
    if tokens := record.get("tokens"):
        names = list(next(iter(tokens.values())))
        table = Table(title="means over tokens", title_justify="left", box=None)
        table.add_column("", header_style="bold")
        for name in names:
            table.add_column(MEASURED[name], header_style="bold", justify="right")
        for kind, values in tokens.items():
            table.add_row(kind, *(f"{values[name]:.4f}" for name in names))
        console.print(table)
