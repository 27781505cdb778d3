"""``swila recipes``: the recipes of pretraining."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swila.cli.options import needs_transformers, one_line_errors

if TYPE_CHECKING:
    from swila.pretraining.recipe import Recipe

GPU = "H100"
WIDTH = 96  # columns of the list, also where the output is not a terminal


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Show this recipe in full: a name, my_recipe.py or my_recipe.py:function.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="Show only this size: tiny, small, 115m, 374m or 1.3b.")] = None,
) -> None:
    """List the recipes of pretraining, or show one in full.

    The hours are an estimate for one GPU. A recipe in full has a line for each field, under the name that --set of
    `swila pretrain` takes.
    """
    needs_transformers()
    with one_line_errors():
        if name is None:
            _show_all(size)
        elif size is not None:
            raise ValueError("--size chooses among all recipes; give it, or the name of a recipe")
        else:
            _show(name)


def _show(name: str) -> None:
    from swila.pretraining.recipes import load_recipe
    from swila.pretraining.settings import describe

    recipe = load_recipe(name)
    print(describe(recipe))
    print(
        f"\n{_parameters(recipe)} parameters{_vocabulary(recipe)}, {_tokens(recipe.tokens)} tokens in "
        f"{recipe.schedule.steps:,} steps of {recipe.tokens_per_step:,}; estimated time on one {GPU}: {_hours(recipe)}"
    )


def _show_all(size: str | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from swila.models.language.presets import SIZES
    from swila.pretraining.recipes import OF_SIZE, get_recipe, recipe_names

    console = Console()
    console.width = max(console.width, WIDTH)
    chosen = set(recipe_names(size))
    for each in OF_SIZE:
        names = [name for name in recipe_names(each) if name in chosen]
        if not names:
            continue
        title = f"\n{each}, {SIZES[each].summary}{_vocabulary(get_recipe(names[0]))}"
        table = Table(title=title, title_justify="left", box=None)
        table.add_column("name", header_style="bold", no_wrap=True)
        for heading in ("parameters", "tokens", "steps", "batch × length", "lr", f"one {GPU}"):
            table.add_column(heading, header_style="bold", justify="right", no_wrap=True)
        for recipe in map(get_recipe, names):
            table.add_row(
                recipe.name,
                _parameters(recipe),
                _tokens(recipe.tokens),
                f"{recipe.schedule.steps:,}",
                f"{recipe.data.batch_size} × {recipe.data.length:,}",
                f"{recipe.optimizer.lr:g}",
                _hours(recipe),
            )
        console.print(table)
    print("\nswila recipes NAME shows a recipe in full; a Python file with a function recipe() is one of your own.")


def _parameters(recipe: Recipe) -> str:
    from swila.models.language.listing import describe_config

    return f"{describe_config(recipe.model.config(recipe.data.length)).parameters / 1e6:,.1f} M"


def _vocabulary(recipe: Recipe) -> str:
    """Return a remark if the number of parameters depends on the data."""
    return " (with a vocabulary of 32,000; it is that of the data)" if recipe.model.vocab_size is None else ""


def _tokens(tokens: int) -> str:
    return f"{tokens / 1e9:.1f} B" if tokens >= 1e9 else f"{tokens / 1e6:.1f} M"


def _hours(recipe: Recipe) -> str:
    from swila.pretraining.cost import gpu_hours

    hours = gpu_hours(recipe, GPU)
    if hours >= 1:
        return f"{hours:,.0f} h" if hours >= 10 else f"{hours:.1f} h"
    return f"{hours * 60:.0f} min" if hours * 60 >= 1 else "< 1 min"
