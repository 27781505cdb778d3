"""``swila run``: the experiments of the paper."""

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

run = typer.Typer(help="Run an experiment of the paper.", no_args_is_help=True)

Rates = Annotated[
    list[float] | None, typer.Option("--lr", help="Learning rate; repeat for several. Default: those of the preset.")
]
Seeds = Annotated[
    str | None, typer.Option(help="Number of seeds (3) or list of seeds (0,4,7). Default: those of the preset.")
]
Steps = Annotated[
    int | None, typer.Option(help="Maximum number of training steps. Default: that of the preset.", min=1)
]
Precision = Annotated[
    str | None,
    typer.Option(help="Precision on a GPU: float32, tf32 or bfloat16 (autocast). Default: that of the preset."),
]
Epochs = Annotated[
    int | None, typer.Option(help="Number of epochs over the training set. Default: that of the preset.", min=1)
]
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
    typer.Option(
        "--hidden-size",
        help="Width d of the model; repeat for several. Default: those of the preset. A layer with M memories has a "
        "state of M (d/2)² scalars.",
    ),
]
Layers = Annotated[
    list[int] | None, typer.Option(help="Number of blocks; repeat for several. Default: those of the preset.", min=1)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a setting of the preset; repeat for several: init_std, temporal_bias, noise, embed_dropout, "
        "router_projection, conv_on (qkv or input), weight_decay, clip, warmup_steps, schedule. Runs with changed "
        "settings have rows of their own in the table.",
    ),
]
Device = Annotated[str, typer.Option(help="Device to train on: cpu, cuda, cuda:1.")]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Number of concurrent runs: processes on a CPU (default: one per core), streams on a GPU (default: 2).",
        min=1,
    ),
]
Threads = Annotated[
    int, typer.Option(help="Number of CPU threads of each run; the last digits of results depend on it.", min=1)
]
Out = Annotated[Path | None, typer.Option(help="Output directory. Default: runs/EXPERIMENT-PRESET")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete existing runs instead of resuming them.")]
TensorBoard = Annotated[bool, typer.Option(help="Also write TensorBoard event files.")]


@run.callback()
def _run() -> None:
    """Run an experiment of the paper.

    Trains the models, prints a table of the results and draws the figures.
    """


def _recall(
    context: typer.Context,
    preset: Annotated[
        str,
        typer.Option(help="Size: tiny (minutes on a CPU), small (one GPU) or paper (the size of the paper, one GPU)."),
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

    Tests whether a model can separate several contexts in one small state. A key has a different value in each of the C
    contexts, and the context is named only once. All models have the same state size. A model that recalls the values
    of a key but not the context has an accuracy of 1/C.

    After an interruption (Ctrl-C), the same command resumes the runs. The output directory holds results.json (the
    table, with hardware, versions and commit), accuracy.png, routing.png, with several sizes state-size.png, and a
    directory for each run with its configuration, metrics (JSON lines, TensorBoard) and checkpoint.
    """,
)(_recall)
run.command(
    "mqar",
    help="""Multi-query associative recall, without contexts.

    The task from which CDAR is derived, with the same models and state sizes. Tests how many key-value pairs a state
    can hold when there are no contexts to separate.

    After an interruption (Ctrl-C), the same command resumes the runs. The output directory holds results.json (the
    table, with hardware, versions and commit), accuracy.png, with several sizes state-size.png, and a directory for
    each run with its configuration, metrics (JSON lines, TensorBoard) and checkpoint.
    """,
)(_recall)


@run.command()
def softmax_regression(
    preset: Annotated[
        str,
        typer.Option(
            help="Size: tiny (16 dims, length 64, minutes on a CPU), small (the paper's task, 4 state sizes, a GPU) or "
            "paper (27 configurations)."
        ),
    ] = "tiny",
    model: Annotated[
        list[str] | None, typer.Option(help="Model to train; repeat for several: swila, deltanet, attention.")
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            help="State size as a number of heads with D² scalars; repeat for several. Default: those of the preset."
        ),
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
    """Approximation of softmax attention.

    Trains layers with a state of fixed size to reproduce the output of a softmax attention head: SwiLA, with all ways
    to divide the state among heads and mixtures, and DeltaNet with as many heads as fit into the same state. The score
    is R² on test sequences; of several learning rates, the one with the lowest validation loss counts.

    After an interruption (Ctrl-C), the same command resumes the runs. The output directory holds results.json (the
    table, with hardware, versions and commit), state-size.png, all-configurations.png, and a directory for each run
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
        list[int] | None,
        typer.Option(
            help="Number of automata in the training set; repeat for several. Default: those of the preset.", min=1
        ),
    ] = None,
    lr: Rates = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Number of epochs without a lower validation loss after which a run stops.", min=1),
    ] = None,
    precision: Precision = None,
    device: Device = "cpu",
    jobs: Jobs = None,
    threads: Threads = 1,
    out: Out = None,
    fresh: Fresh = False,
    tensorboard: TensorBoard = True,
) -> None:
    """RegBench: learning a regular language in context.

    Each problem shows strings of a new automaton, and the model predicts the next symbol. A prediction is correct if
    the automaton allows it. The experiment measures how many automata a model must be trained on. The accuracy is that
    of the weights with the lowest validation loss, on held-out automata; validation and test set are the same for all
    training sets.

    After an interruption (Ctrl-C), the same command resumes the runs. The output directory holds results.json (the
    table, with hardware, versions and commit), accuracy.png, total-variation.png, progress.png, and a directory for
    each run with its configuration, metrics (JSON lines, TensorBoard) and checkpoint.
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
    """Train the runs, then write and print the results and draw the figures."""
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
            console.print("[yellow]this preset needs a GPU (--device cuda): on a CPU even the data take minutes[/]")
        results = train(console, runs, directory, device, jobs, threads, fresh, tensorboard)
    with one_line_errors():
        record = experiment.finish(preset, directory)
        if others := len(record["runs"]) - len(runs):
            console.print(f"including {others} runs of earlier commands in this directory")
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
        console.print(f"no figures: {reason}; the same command draws them once it is installed", markup=False)
    else:
        draw(console, experiment, record, directory, directory)
