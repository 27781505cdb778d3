"""Progress of pretraining in a terminal: one line that is updated; in a log file, a line for each line of metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from swila.cli.time_left import TimeLeft, in_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as ProgressBar

    from swila.pretraining.engine import News
    from swila.pretraining.recipe import Recipe


def announce(console: Console, recipe: Recipe, data: Path, out: Path, device: str) -> None:
    """Print the resolved recipe, the operations that MFU counts, and where the run is."""
    from swila.pretraining.flops import recipe_flops
    from swila.pretraining.settings import describe

    console.print(describe(recipe), markup=False, highlight=False)
    flops = recipe_flops(recipe)
    parts = ", ".join(f"{name} {part / flops.forward:.1%}" for name, part in flops._asdict().items() if part)
    console.print(f"{flops.training / 1e9:.3g} GFLOP per token for MFU: {parts}", markup=False, highlight=False)
    console.print(f"{recipe.name} on {device}, data {data}, run {out}", markup=False)


class Live:
    """Shows the progress of a run; an instance is the ``report`` of :func:`swila.pretraining.engine.pretrain`.

    Args:
        console: Where to print.
        recipe: The recipe.
        enabled: Whether to show anything; only one rank does.
    """

    def __init__(self, console: Console, recipe: Recipe, enabled: bool = True) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.console, self.enabled = console, enabled
        self.name, self.steps = recipe.name, recipe.schedule.steps
        self.left = TimeLeft({self.name: self.steps}, 1)
        self.live = enabled and console.is_terminal
        self.bar: ProgressBar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TextColumn("{task.fields[left]}", style="progress.remaining"),
            console=console,
            disable=not self.live,
        )
        self.task = self.bar.add_task(self.name, total=self.steps, note="preparing", left=in_words(None))

    def __enter__(self) -> Live:
        self.bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.__exit__(*error)

    def __call__(self, news: News) -> None:
        """Show what the run reports after an update."""
        if not self.enabled:
            return
        self.left.progressed(self.name, news.step)
        left = in_words(self.left.of(self.name))
        if news.note is not None:
            self.bar.console.print(news.note, markup=False)
        self.bar.update(self.task, completed=news.step, left=left)
        if news.line is None:
            return
        text = in_short(news.line)
        if self.live:
            self.bar.update(self.task, note=text)
        if not self.live or "validation/perplexity" in news.line:
            self.console.print(
                f"{news.step}/{news.steps}  {text}  {left} left", markup=False, highlight=False, soft_wrap=True
            )


def in_short(line: dict[str, Any]) -> str:
    """Return the metrics of an update in one line."""
    parts = []
    if "train/loss" in line:
        parts += [f"loss {line['train/loss']:.4f}", f"norm {line['train/gradient_norm']:.2f}", f"lr {line['lr']:.2e}"]
        parts.append(f"{line['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in line:
        parts.append(f"MFU {line['mfu']:.1%}")
    if "memory_gb" in line:
        parts.append(f"{line['memory_gb']:.1f} GB")
    if line.get("bad_batches"):
        parts.append(f"{line['bad_batches']} bad batches")
    if "validation/perplexity" in line:
        parts.append(f"validation perplexity {line['validation/perplexity']:.2f}")
    return "  ".join(parts)
