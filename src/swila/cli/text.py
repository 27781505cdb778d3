"""What ``swila generate`` and ``swila chat`` share: their options, the model, the stream of text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from swila.cli.options import parse_device, parse_dtype

Model = Annotated[str, typer.Argument(help="Directory (or hub name) of a saved model with its tokenizer.")]
Device = Annotated[str | None, typer.Option(help="Device; by default cuda if there is one, else cpu.")]
Dtype = Annotated[
    str | None, typer.Option(help="Dtype of the weights; by default bfloat16 on a GPU, float32 on a CPU.")
]
Tokenizer = Annotated[str | None, typer.Option(help="Directory of the tokenizer, if it is not with the model.")]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", help="Tokens to generate at most.")]
Temperature = Annotated[float, typer.Option(help="0 takes the likeliest token.")]
TopK = Annotated[int | None, typer.Option(help="Draw among the k likeliest.")]
TopP = Annotated[float, typer.Option(help="Draw among the likeliest that together have this probability.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the draws.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile the step first: slow to start, then faster.")]
Stop = Annotated[list[int] | None, typer.Option(help="Token id that ends a text; repeat for several.")]
State = Annotated[Path | None, typer.Option(help="Saved state to go on from.")]


def load_model(
    model: str, tokenizer: str | None, device: str | None, dtype: str | None, state: Path | None
) -> tuple[Any, Any]:
    """Model and tokenizer, where and as they are wanted; in the dtype of a state that is to be continued."""
    folder = Path(model)
    looks_like_a_path = model.count("/") != 1 or folder.parent.is_dir()
    if not folder.is_dir() and looks_like_a_path:
        raise ValueError(f"model must be a directory that save_pretrained wrote, or a name on the hub, got {model!r}")
    import torch
    from transformers import AutoTokenizer
    from transformers.utils import logging

    from swila import SwiLAForCausalLM
    from swila.generation.state import saved_dtype

    logging.disable_progress_bar()
    where = parse_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    of_state = None if state is None else saved_dtype(state)
    kind = parse_dtype(dtype or of_state or ("bfloat16" if where.startswith("cuda") else "float32"))
    logging.set_verbosity_error()
    network = SwiLAForCausalLM.from_pretrained(model, dtype=kind).to(where).eval()
    try:
        return network, AutoTokenizer.from_pretrained(tokenizer or model)
    except (ValueError, OSError):
        raise ValueError(
            f"no tokenizer was found in {tokenizer or model!r}; name its directory with --tokenizer"
        ) from None


def make_streamer(tokenizer: Any, skip_prompt: bool) -> Any:
    """What prints text as it comes."""
    from transformers import TextStreamer

    return TextStreamer(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)
