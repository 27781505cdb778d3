"""Options, model loading and streaming of ``swila generate`` and ``swila chat``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swila.cli.options import parse_device, parse_dtype

if TYPE_CHECKING:
    import torch

Model = Annotated[str, typer.Argument(help="Directory or hub name of a saved model with its tokenizer.")]
Device = Annotated[str | None, typer.Option(help="Device. Default: cuda if there is one, else cpu.")]
Dtype = Annotated[str | None, typer.Option(help="Dtype of the weights. Default: bfloat16 on a GPU, else float32.")]
Tokenizer = Annotated[str | None, typer.Option(help="Directory of the tokenizer, if it is not in that of the model.")]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", help="Maximum number of tokens to generate.")]
Temperature = Annotated[float, typer.Option(help="Sampling temperature; 0 takes the most likely token.")]
TopK = Annotated[int | None, typer.Option(help="Sample from the k most likely tokens.")]
TopP = Annotated[float, typer.Option(help="Sample from the most likely tokens whose probabilities sum to this.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the sampling, from 0 to 2**64 - 1.")]
Compile = Annotated[bool, typer.Option("--compile", help="Compile the decode step: slow to start, then faster.")]
Stop = Annotated[list[int] | None, typer.Option(help="ID of a token that ends the text; repeat for several.")]
State = Annotated[Path | None, typer.Option(help="Saved state to resume from.")]

Readers = dict[str, Callable[[Path], Any]]
"""Functions by file pattern that read a file of this pattern, and raise if it is damaged."""


def load_model(
    model: str, tokenizer: str | None, device: str | None, dtype: str | None, state: Path | None
) -> tuple[Any, Any]:
    """Return model and tokenizer; the model has the dtype of ``state`` unless ``dtype`` is given."""
    folder = Path(model)
    looks_like_a_path = model.count("/") != 1 or folder.parent.is_dir()
    if not folder.is_dir() and looks_like_a_path:
        raise ValueError(f"model must be a directory that save_pretrained wrote, or a name on the hub, got {model!r}")
    _refuse_adapter(folder)
    import torch
    from transformers.utils import logging

    from swila.generation.state import saved_dtype

    logging.disable_progress_bar()
    where = parse_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    of_state = None if state is None else saved_dtype(state)
    kind = parse_dtype(dtype or of_state or ("bfloat16" if where.startswith("cuda") else "float32"))
    logging.set_verbosity_error()
    network = _load_network(model, kind).to(where).eval()
    return network, _load_tokenizer(tokenizer or model)


def _load_network(model: str, dtype: torch.dtype) -> Any:
    from swila import SwiLAForCausalLM

    try:
        return SwiLAForCausalLM.from_pretrained(model, dtype=dtype)
    except (
        Exception
    ) as error:  # transformers re-raises errors of safetensors, torch and json, which do not name the file
        if (found := _unreadable(Path(model), _model_files())) is None:
            raise
        file, reason = found
        raise ValueError(
            f"model must be complete, but {file} is truncated or damaged; copy it again ({reason})"
        ) from error


def _load_tokenizer(place: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place)
    except Exception as error:  # transformers re-raises errors of json and of its own lookups
        if (found := _unreadable(Path(place), _tokenizer_files())) is not None:
            file, reason = found
            raise ValueError(
                f"tokenizer must be complete, but {file} cannot be read; copy it again ({reason})"
            ) from error
        if not isinstance(error, ValueError | OSError):
            raise
        raise ValueError(f"no tokenizer was found in {place!r}; name its directory with --tokenizer") from None


def _model_files() -> Readers:
    import torch
    from safetensors import safe_open

    from swila.training.json_files import read_json

    def open_weights(file: Path) -> None:
        with safe_open(file, "pt"):
            pass

    return {
        "config.json": read_json,
        "*.index.json": read_json,
        "*.safetensors": open_weights,
        "*.bin": lambda file: torch.load(file, map_location="meta", weights_only=True),
    }


def _tokenizer_files() -> Readers:
    from tokenizers import Tokenizer

    from swila.training.json_files import read_json

    return {"tokenizer.json": lambda file: Tokenizer.from_file(str(file)), "tokenizer_config.json": read_json}


def _unreadable(folder: Path, readers: Readers) -> tuple[Path, str] | None:
    """Return the first file that cannot be read, and why."""
    for pattern, read in readers.items():
        for file in sorted(folder.glob(pattern)):
            try:
                read(file)
            except Exception as error:
                return file, str(error).removeprefix(f"{file} ").partition("\n")[0].partition(". ")[0]
    return None


def _refuse_adapter(folder: Path) -> None:
    """Raise ValueError with instructions if a directory holds a PEFT adapter, with or without a model.

    With both in a directory, transformers loads both if peft is installed, and silently the model alone if it is not.
    The adapter must be moved first because a model that was loaded with it cannot be merged.
    """
    from swila.training.json_files import read_json

    config = folder / "adapter_config.json"
    if not config.exists():
        return
    base, adapter, move = read_json(config).get("base_model_name_or_path") or "BASE", str(folder), ""
    if any(folder.glob("model*.safetensors")) or any(folder.glob("pytorch_model*.bin")):
        adapter = "ADAPTER"
        move = f"move it out of the directory of the model (adapter_* to a directory {adapter}) and, to use it, "
    raise ValueError(
        f"model must be a complete model, got a PEFT adapter in {str(folder)!r}; "
        f"{move}merge it into its base model first: base = SwiLAForCausalLM.from_pretrained({base!r}); "
        f"PeftModel.from_pretrained(base, {adapter!r}).merge_and_unload().save_pretrained(DIRECTORY)"
    )


def read_text(file: Path | None) -> str:
    """Return the text of a file, or with None that of standard input."""
    try:
        return sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        source = "the prompt on standard input" if file is None else f"file {file}"
        found = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise ValueError(f"{source} must be text in UTF-8, got {found}: {error.reason}") from None


def make_streamer(tokenizer: Any, skip_prompt: bool) -> Any:
    """Return a streamer that prints text as it is generated."""
    from transformers import TextStreamer

    return TextStreamer(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)
