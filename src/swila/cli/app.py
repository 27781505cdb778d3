"""The application with all its commands; a command imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from swila.cli.bench import bench
from swila.cli.chat import chat
from swila.cli.data import data
from swila.cli.demo import demo
from swila.cli.doctor import doctor
from swila.cli.export import export
from swila.cli.generate import generate
from swila.cli.info import info
from swila.cli.inspect import inspect
from swila.cli.models import models
from swila.cli.plot import plot
from swila.cli.pretrain import pretrain
from swila.cli.recipes import recipes
from swila.cli.run import run
from swila.cli.status import status

app = typer.Typer(
    help="Switching linear attention: run experiments, pretrain language models, generate text, benchmark kernels.",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        from swila import __version__

        print(__version__)
        raise typer.Exit


app.add_typer(run, name="run")
app.command()(pretrain)
app.command()(export)
app.command()(status)
app.command()(plot)
app.command()(inspect)
app.add_typer(data, name="data")
app.command()(models)
app.command()(recipes)
app.command()(generate)
app.command()(chat)
app.command()(info)
app.command()(doctor)
app.add_typer(bench, name="bench")
app.command()(demo)
