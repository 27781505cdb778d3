"""The output of ``swila pretrain --plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from swila.pretraining.plan import Plan

PARTS = {
    "weights": "master weights, float32",
    "gradients": "gradients, float32",
    "optimizer": "AdamW's moments, float32",
    "gathered": "gathered weights",
    "unsharded_gradients": "gradients before reduction",
    "activations": "activations of a micro-batch",
    "loss": "logits and their gradients",
}
OPERATIONS = {
    "gather_forward": "all-gather, forward",
    "gather_backward": "all-gather, backward",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce between copies",
}


def show_plan(plan: Plan, console: Console) -> None:
    """Print a plan: memory per GPU, communication, time, and what the estimates assume."""
    from rich.markup import escape
    from rich.table import Table

    console.print(f"[bold]{escape(plan.recipe)}[/] on {plan.gpus:,} × {escape(plan.gpu)}", highlight=False)
    table = Table(box=None, show_header=False, highlight=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row("parameters", f"{plan.parameters / 1e6:,.1f} M")
    table.add_row("  on each GPU", f"{plan.per_rank / 1e6:,.1f} M")
    table.add_row("sequences per GPU and update", f"{plan.micro_batches:,} × {plan.micro_batch}")
    table.add_row("", "")
    for name, title in PARTS.items():
        table.add_row(title, _gigabytes(getattr(plan.memory, name)))
    colour = "green" if plan.fits else "red"
    table.add_row("[bold]memory of a GPU[/]", f"[bold {colour}]{_gigabytes(plan.memory.total)}[/]")
    table.add_row("  usable", _gigabytes(plan.usable_memory))
    largest = f"{plan.largest_micro_batch}" if plan.largest_micro_batch else "[red]none fits[/]"
    table.add_row("largest micro-batch that fits", largest)
    if plan.gpus > 1:
        table.add_row("", "")
        for name, title in OPERATIONS.items():
            if sent := getattr(plan.communication, name):
                table.add_row(title, _gigabytes(sent))
        table.add_row("[bold]sent by a GPU in an update[/]", f"[bold]{_gigabytes(plan.communication.total)}[/]")
        table.add_row("  time of it", f"{1e3 * plan.communication.seconds:,.0f} ms")
    table.add_row("", "")
    table.add_row("computing of an update", f"{1e3 * plan.compute_seconds:,.0f} ms")
    table.add_row("tokens per second", f"{plan.tokens_per_second:,.0f}")
    table.add_row("[bold]time of the run[/]", f"[bold]{_time(plan.hours)}[/]")
    table.add_row("  times GPUs", _time(plan.gpu_hours))
    console.print(table)
    console.print("\nThese are estimates. They assume:", highlight=False)
    for assumption in plan.assumptions:
        console.print(f"- {assumption}", markup=False, highlight=False)


def _gigabytes(count: float) -> str:
    return f"{count / 2**30:,.2f} GiB"


def _time(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
