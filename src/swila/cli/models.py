"""``swila models``: the presets of language models."""

from __future__ import annotations

from typing import Annotated

import typer

from swila.cli.options import needs_transformers, one_line_errors


def models(
    size: Annotated[str | None, typer.Option(help="Show only this size: tiny, small, 115m, 374m or 1.3b.")] = None,
) -> None:
    """List the presets of language models.

    Shows the number of parameters, the size of the recurrent state in float32, and the size of the keys and values of a
    token in bfloat16.
    """
    from rich.console import Console
    from rich.table import Table

    needs_transformers()
    from swila.models.language.listing import describe
    from swila.models.language.presets import SIZES

    with one_line_errors():
        size = None if size is None else size.lower()
        if size is not None and size not in SIZES:
            raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    console = Console()
    for name, skeleton in SIZES.items():
        if size not in (None, name):
            continue
        depth, width = skeleton.num_hidden_layers, skeleton.hidden_size
        title = f"\n{name}, {skeleton.summary}: {depth} layers, width {width}"
        table = Table(title=title, title_justify="left", box=None)
        table.add_column("name", header_style="bold", no_wrap=True)
        for heading in ("parameters", "feed-forward", "state", "KV/token"):
            table.add_column(heading, header_style="bold", justify="right", no_wrap=True)
        for architecture, inner in skeleton.widths.items():
            found = describe(f"{architecture}-{name}")
            table.add_row(
                f"{architecture}-{name}",
                f"{found.parameters / 1e6:,.1f} M",
                str(inner),
                f"{found.state_bytes / 1e6:.2f} MB" if found.state_bytes else "-",
                f"{found.cache_bytes:,} B" if found.cache_bytes else "-",
            )
        console.print(table)
    print("\nSwiLAForCausalLM(SwiLAConfig.preset(NAME)) makes a model; preset() also takes options to change.")
