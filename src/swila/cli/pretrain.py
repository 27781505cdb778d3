"""``swila pretrain``: train a language model from a recipe."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swila.cli.options import fail, needs_transformers, one_line_errors, parse_device

if TYPE_CHECKING:
    from rich.console import Console

    from swila.pretraining.recipe import Recipe


def pretrain(
    recipe: Annotated[
        str,
        typer.Argument(help="Name of a recipe (swila recipes lists them), or a Python file: my_recipe.py[:function]."),
    ],
    data: Annotated[Path | None, typer.Option(help="Directory of tokens, written by swila data prepare.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory of the run. Default: runs/RECIPE")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of updates. Default: that of the recipe.", min=1)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the recipe: --set optimizer.lr=3e-4."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda if there is one, else cpu.")] = None,
    skip_bad_batches: Annotated[
        bool, typer.Option("--skip-bad-batches", help="Skip batches with a NaN or exploding loss instead of stopping.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete an existing run instead of resuming it.")] = False,
    verify: Annotated[bool, typer.Option(help="Verify the checksums of the data first.")] = True,
    plan: Annotated[
        bool, typer.Option("--plan", help="Do not train; show memory, communication and time that it would take.")
    ] = False,
    gpus: Annotated[int, typer.Option(help="With --plan: number of GPUs.", min=1)] = 1,
    gpu: Annotated[str, typer.Option(help="With --plan: kind of GPU, such as H100, H200 or A100.")] = "H100",
) -> None:
    """Train a language model from a recipe.

    Runs on one CPU, on one GPU, and with torchrun on many: torchrun --nproc-per-node 8 -m swila pretrain RECIPE ...

    The same command resumes a run from its last checkpoint after an interruption, also with another number of ranks.
    The directory holds the resolved recipe, metrics (metrics.jsonl, TensorBoard) and checkpoints; swila status, plot
    and export read it.

    Exit status: 0 if the run is finished, or saved after SIGTERM (preemption); 130 if saved after Ctrl-C; 1 if a bad
    batch or a failed checkpoint stopped it; 2 if the command is wrong.
    """
    from rich.console import Console

    needs_transformers()
    from swila.pretraining.recipes import load_recipe
    from swila.pretraining.settings import change

    with one_line_errors():
        changes = [*(settings or ())]
        if steps is not None:
            changes.append(f"schedule.steps={steps}")
        if skip_bad_batches:
            changes.append("stability.skip_bad_batches=true")
        resolved = change(load_recipe(recipe), changes)
    console = Console()
    if plan:
        from swila.cli.plan import show_plan
        from swila.pretraining.plan import plan as make_plan

        with one_line_errors():
            show_plan(make_plan(resolved, gpus, gpu), console)
        return
    if data is None:
        fail("--data must be given: a directory of tokens, written by swila data prepare")
    raise SystemExit(_train(resolved, data, out or Path("runs") / resolved.name, device, fresh, verify, console))


def _train(
    recipe: Recipe, data: Path, out: Path, device: str | None, fresh: bool, verify: bool, console: Console
) -> int:
    """Train with live progress on rank 0; return the exit status."""
    import os

    import torch

    from swila.cli.pretrain_live import Live, announce
    from swila.data import TokenData
    from swila.pretraining.engine import Preempted
    from swila.pretraining.engine import pretrain as run
    from swila.pretraining.identity import resolve
    from swila.pretraining.stability import BadBatchError
    from swila.training import terminate

    main = os.environ.get("RANK", "0") == "0"
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        fresh = False  # torchrun starts the same command again after a crash: it must not delete the run
    signal.signal(signal.SIGTERM, terminate)
    try:
        with one_line_errors():
            where = parse_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
            recipe = resolve(recipe, TokenData(data).manifest)
        if main:
            announce(console, recipe, data, out, where)
        with Live(console, recipe, enabled=main) as show:
            result = run(recipe, data, out, where, fresh, verify, show)
    except Preempted as stop:
        if main:
            console.print(f"stopped at step {stop.step} and saved; the same command resumes it", markup=False)
        return 130 if stop.signal == signal.SIGINT else 0
    except KeyboardInterrupt:
        print("swila: interrupted; the same command resumes from the last checkpoint", file=sys.stderr)
        return 130
    except BadBatchError as error:
        print(f"swila: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"swila: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"swila: {error}", file=sys.stderr)
        return 1
    if main:
        score = result.get("final")
        said = "" if score is None else f", {result['metric']} {score:.3f}"
        console.print(f"finished: {result['steps']:,} updates{said}, {result['seconds']:.0f} s", markup=False)
        console.print(f"swila export {out} --out DIR writes it in Hugging Face format", markup=False)
    return 0
