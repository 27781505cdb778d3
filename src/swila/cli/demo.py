"""``swila demo``: one regressor against a mixture of them, on a switching linear map."""

from __future__ import annotations

from typing import Annotated

import typer

COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red", "white", "bright_black")


def demo(seed: Annotated[int, typer.Option(help="Seed of the data and of the initial mixtures.")] = 0) -> None:
    """Show what a mixture of regressors is for.

    Predicts a stream of key-value pairs whose linear map keeps switching, with one regressor and with several.
    """
    import torch
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table
    from rich.text import Text

    from swila.experiments.switching_regression import follow, make_stream, summarize

    torch.set_num_threads(1)  # a single token is too little work for several threads
    console = Console()
    stream = make_stream(seed=seed)
    B, T, D = stream.keys.shape
    contexts = int(stream.context.max()) + 1
    console.print(
        f"{B} streams of {T} pairs (k, v = M k + noise) in {D} dimensions. One of {contexts} maps M is active for "
        "about 32 tokens, then another, without notice. At every token the state predicts v, then is updated with it. "
        "There is no training.\n"
    )
    table = Table(
        title="relative squared error of the prediction, second half of the streams", title_justify="left", box=None
    )
    table.add_column("regressors", header_style="bold")
    for heading in ("state size", "all tokens", "0-3 after a switch", "4-7", "16 on"):
        table.add_column(heading, header_style="bold", justify="right")
    traces = {}
    for mixtures in track((1, 2, 4, 8), "following", console=console, transient=True):
        traces[mixtures] = follow(stream, mixtures, seed=seed)
        found = summarize(stream, traces[mixtures])
        name = "1, the delta rule" if mixtures == 1 else f"{mixtures}, switching"
        table.add_row(name, f"{mixtures * D * D:,}", *(f"{found[group]:.2f}" for group in ("all", "0-3", "4-7", "16+")))
    console.print(table)

    shown = max(min(96, console.width - 24), 8)
    console.print(
        "\nThe end of one stream: the active map, and the regressor (of 4) with the largest responsibility in each of "
        "three output dimensions."
    )
    text = Text("map               ")
    for c in stream.context[0, -shown:].tolist():
        text.append("ABCDEFGH"[c], style=COLOURS[c])
    console.print(text)
    for d in range(3):
        text = Text(f"output dim {d}      ")
        for j in traces[4].responsibilities[0, -shown:, :, d].argmax(-1).tolist():
            text.append(str(j + 1), style=COLOURS[j])
        console.print(text)
