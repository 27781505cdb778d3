"""``swila run``: the experiments of the paper, at three sizes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swila.cli.live import train
from swila.cli.options import fail, one_line_errors, parse_device, parse_seeds

if TYPE_CHECKING:
    from rich.console import Console

    from swila.experiments.experiment import Experiment
    from swila.experiments.record import Record
    from swila.experiments.training_run import TrainingRun

run = typer.Typer(
    help="Run an experiment of the paper: train its models, print the table, draw the figures.", no_args_is_help=True
)

Rates = Annotated[list[float] | None, typer.Option("--lr", help="Learning rate; repeat for several.")]
Seeds = Annotated[
    str | None, typer.Option(help="How many seeds (3), or which ones (0,4,7). Default: the preset's number.")
]
Steps = Annotated[int | None, typer.Option(help="Training steps at most. Default: the preset's.", min=1)]
Precision = Annotated[
    str | None, typer.Option(help="On a GPU: float32, tf32 or bfloat16 (autocast). Default: the preset's.")
]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training set. Default: the preset's length.", min=1)]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Model to train; repeat for several: temporal-swila, swila, deltanet, gated-deltanet, kda, dn-mom, "
        "attention, fox. Default: those of the preset.",
    ),
]
Widths = Annotated[
    list[int] | None,
    typer.Option("--hidden-size", help="Width d; repeat for several. The state has M (d/2)² scalars, M memories."),
]
Layers = Annotated[list[int] | None, typer.Option(help="Blocks; repeat for several.", min=1)]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Replace an open point of the preset; repeat for several: init_std, temporal_bias, noise, embed_dropout, "
        "router_projection, conv_on (qkv or input), weight_decay, clip, warmup_steps, schedule. Such runs are rows of "
        "their own.",
    ),
]
Device = Annotated[str, typer.Option(help="Where to train: cpu, cuda, cuda:1.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Runs side by side: on a CPU in processes (default: one for each core), on a GPU in one (default: 2).",
        min=1,
    ),
]
Threads = Annotated[int, typer.Option(help="Threads of each run; its last digits depend on them.", min=1)]
Out = Annotated[Path | None, typer.Option(help="Directory for everything. Default: runs/EXPERIMENT-PRESET")]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Throw away runs that are already there, instead of going on with them.")
]
TensorBoard = Annotated[bool, typer.Option(help="Write TensorBoard's event files as well.")]


@run.callback()
def _run() -> None:
    """Run an experiment of the paper: train its models, print the table, draw the figures."""


def _recall(
    context: typer.Context,
    preset: Annotated[
        str, typer.Option(help="Size: tiny (minutes on a CPU), small (one GPU) or paper (the paper's, a GPU).")
    ] = "tiny",
    model: Models = None,
    hidden_size: Widths = None,
    layers: Layers = None,
    lr: Rates = None,
    seeds: Seeds = None,
    steps: Steps = None,
    epochs: Epochs = None,
    settings: Settings = None,
    precision: Precision = None,
    device: Device = "cpu",
    jobs: Jobs = None,
    threads: Threads = 1,
    out: Out = None,
    fresh: Fresh = False,
    tensorboard: TensorBoard = True,
) -> None:
    from swila.experiments.registry import EXPERIMENTS
    from swila.experiments.settings import parse

    experiment = EXPERIMENTS[context.info_name or ""]
    with one_line_errors():
        changed, chosen = parse(settings or ()), parse_seeds(seeds)
        sizes = preset, model, hidden_size, layers, lr, chosen, steps, epochs, precision, changed
        runs = experiment.make_runs(*sizes)
    _carry_out(experiment, preset, runs, device, jobs, threads, out, fresh, tensorboard)


run.command(
    "cdar",
    help="""Context-dependent associative recall.

    Can a model keep several contexts apart in one small state? The same key has another value in every context, and the
    context is named only once. All models have the same state size. One that knows the values but not the context
    scores 1/C.

    Interrupt it with Ctrl-C: the same command goes on where it stopped. In the output directory: results.json (the
    table, with hardware, versions and commit), accuracy.png, routing.png, with several sizes state-size.png, and a
    directory for every run with its configuration, metrics (JSON lines, TensorBoard) and checkpoint.
    """,
)(_recall)
run.command(
    "mqar",
    help="""Multi-query associative recall, without contexts.

    The task that CDAR was made from, with the same models and state sizes: how many pairs can a state hold when nothing
    has to be kept apart?

    Interrupt it with Ctrl-C: the same command goes on where it stopped. In the output directory: results.json (the
    table, with hardware, versions and commit), accuracy.png, with several sizes state-size.png, and a directory for
    every run with its configuration, metrics (JSON lines, TensorBoard) and checkpoint.
    """,
)(_recall)


@run.command()
def softmax_regression(
    preset: Annotated[
        str,
        typer.Option(
            help="Size: tiny (16 dims, length 64, minutes on a CPU), small (the paper's task, 4 budgets, a GPU) or "
            "paper (27 configurations)."
        ),
    ] = "tiny",
    model: Annotated[
        list[str] | None, typer.Option(help="Model to train; repeat for several: swila, deltanet, attention.")
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(help="State size in heads of D² scalars; repeat for several. Default: those of the preset."),
    ] = None,
    lr: Rates = None,
    seeds: Seeds = None,
    steps: Steps = None,
    precision: Precision = None,
    device: Device = "cpu",
    jobs: Jobs = None,
    threads: Threads = 1,
    out: Out = None,
    fresh: Fresh = False,
    tensorboard: TensorBoard = True,
) -> None:
    """Approximating softmax attention.

    How well does a layer with a fixed state do what a head of softmax attention does? SwiLA, with all ways to share a
    state among heads and mixtures, against DeltaNet with as many heads as fit into the same state. The score is R² on
    test sequences; with several learning rates, that of the one with the lowest validation loss.

    Interrupt it with Ctrl-C: the same command goes on where it stopped. In the output directory: results.json (the
    table, with hardware, versions and commit), state-size.png, all-configurations.png, and a directory for every run
    with its configuration, metrics (JSON lines, TensorBoard) and checkpoint.
    """
    from swila.experiments.registry import SOFTMAX_REGRESSION

    with one_line_errors():
        runs = SOFTMAX_REGRESSION.make_runs(preset, model, budget, lr, parse_seeds(seeds), steps, precision)
    _carry_out(SOFTMAX_REGRESSION, preset, runs, device, jobs, threads, out, fresh, tensorboard)


@run.command()
def regbench(
    preset: Annotated[
        str,
        typer.Option(
            help="Size: tiny (small automata and models, minutes on a CPU), small (1,000 automata, a GPU) or paper "
            "(up to 40,000)."
        ),
    ] = "tiny",
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model to train; repeat for several: temporal-swila, swila, dn-mom, deltanet, attention, "
            "gated-deltanet, kda, fox. Default: the first five."
        ),
    ] = None,
    automata: Annotated[
        list[int] | None, typer.Option(help="Size of the training set; repeat for several.", min=1)
    ] = None,
    lr: Rates = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    patience: Annotated[
        int | None, typer.Option(help="End after so many epochs without a lower validation loss.", min=1)
    ] = None,
    precision: Precision = None,
    device: Device = "cpu",
    jobs: Jobs = None,
    threads: Threads = 1,
    out: Out = None,
    fresh: Fresh = False,
    tensorboard: TensorBoard = True,
) -> None:
    """RegBench, learning a language in context.

    A problem shows strings of an automaton never met before; the model says which symbol comes next. An answer counts
    as right if the automaton allows it. How many automata must a model be trained on? Accuracy is that of the weights
    with the lowest validation loss, on automata held out; validation and test are the same for all training sets.

    Interrupt it with Ctrl-C: the same command goes on where it stopped. In the output directory: results.json (the
    table, with hardware, versions and commit), accuracy.png, total-variation.png, progress.png, and a directory for
    every run with its configuration, metrics (JSON lines, TensorBoard) and checkpoint.
    """
    from swila.experiments.registry import REGBENCH

    with one_line_errors():
        runs = REGBENCH.make_runs(preset, model, automata, lr, parse_seeds(seeds), epochs, patience, precision)
    _carry_out(REGBENCH, preset, runs, device, jobs, threads, out, fresh, tensorboard)


def _carry_out(
    experiment: Experiment[Any],
    preset: str,
    runs: list[TrainingRun],
    device: str,
    jobs: int | None,
    threads: int,
    out: Path | None,
    fresh: bool,
    tensorboard: bool,
) -> None:
    """Train, then the table, the results file and the figures."""
    from rich.console import Console

    from swila.cli.results import show
    from swila.experiments.experiment import RESULTS
    from swila.experiments.sweep import claim

    console = Console()
    directory = out or Path("runs") / f"{experiment.name}-{preset}"
    with one_line_errors():
        device = parse_device(device)
        claim(directory, {"experiment": experiment.name, "preset": preset})
        console.print(f"[bold]{experiment.title}, {preset}[/]: {experiment.presets[preset].summary}")
        if device == "cpu" and preset != "tiny":
            console.print("[yellow]this size is for a GPU (--device cuda): on a CPU the data alone take minutes[/]")
        results = train(console, runs, directory, device, jobs, threads, fresh, tensorboard)
    with one_line_errors():
        record = experiment.finish(preset, directory)
        if others := len(record["runs"]) - len(runs):
            console.print(f"with {others} runs of earlier commands in this directory")
        show(console, experiment, record)
        console.print(f"results in {directory / RESULTS}", markup=False)
        _draw(console, experiment, record, directory)
    errors = {name: result["error"] for name, result in results.items() if result["status"] == "failed"}
    if errors:
        first = next(iter(errors))
        fail(f"{len(errors)} of {len(runs)} runs failed; the first, {first}: {errors[first]}")


def _draw(console: Console, experiment: Experiment[Any], record: Record[Any], directory: Path) -> None:
    from swila.cli.results import draw, why_no_figures

    if reason := why_no_figures():
        console.print(f"no figures: {reason}; the same command then draws them", markup=False)
    else:
        draw(console, experiment, record, directory, directory)
