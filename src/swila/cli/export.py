"""``swila export``: a pretraining run as a model directory for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swila.cli.options import needs_transformers, one_line_errors


def export(
    run: Annotated[Path, typer.Argument(help="Directory of swila pretrain.")],
    out: Annotated[Path, typer.Option(help="Directory to write; must be new or empty.")],
    dtype: Annotated[str, typer.Option(help="Dtype of the weights: bfloat16 or float32.")] = "bfloat16",
    step: Annotated[int | None, typer.Option(help="Step of the checkpoint. Default: the last.")] = None,
) -> None:
    """Write a pretraining run in Hugging Face format, with its tokenizer and a model card.

    from_pretrained, swila generate and swila chat work on the directory at once.
    """
    needs_transformers()
    from rich.console import Console
    from transformers.utils import logging

    from swila.pretraining.export import export as write

    logging.disable_progress_bar()
    short = {"bf16": "bfloat16", "fp32": "float32"}
    with one_line_errors():
        write(run, out, short.get(dtype, dtype), step)
    Console().print(f'model, tokenizer and model card in {out}; try: swila generate {out} "The"', markup=False)
