"""``swila generate`` and ``swila chat``: text from a saved model."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swila.cli.options import fail, needs_transformers, one_line_errors, parse_device, parse_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


COMMANDS = "/save FILE, /load FILE, /reset, /quit"


def generate(
    model: Model,
    prompt: Annotated[list[str] | None, typer.Argument(help="One or more prompts; - reads one from the input.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read this text first; prompts go on from it.")] = None,
    state: State = None,
    save_state: Annotated[
        Path | None, typer.Option(help="Save the state after prompt and new tokens; with -n 0, after the prompt.")
    ] = None,
    max_new_tokens: NewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    device: Device = None,
    dtype: Dtype = None,
    tokenizer: Tokenizer = None,
    compile: Compile = False,
) -> None:
    """Continue prompts with a saved model.

    One prompt is streamed; several are generated side by side. With --save-state, what the model has read is kept in a
    file, and --state goes on from there: a long document is read once (--file BOOK --save-state FILE -n 0).
    """
    needs_transformers()
    with one_line_errors():
        if not prompt and file is None and state is None:
            fail("a prompt, --file or --state must be given")
        if temperature == 0 and (top_k is not None or top_p < 1 or seed is not None):
            fail("--seed, --top-k and --top-p have no effect without --temperature")
        prompts = [sys.stdin.read() if text == "-" else text for text in prompt or []]
        text = None if file is None else file.read_text()
        from swila.generation import GenerationState, prefill
        from swila.generation import generate as run

        network, words = _load(model, tokenizer, device, dtype, state)
        before = None if state is None else GenerationState.load(state, network)
        with _reading() as progress:
            if text is not None:
                before = prefill(network, text, words, before, progress=progress)
            several = max(len(prompts), 0 if before is None else len(before)) > 1
            silent = several or max_new_tokens == 0
            out = run(
                network,
                prompts or None,
                words,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                stop=stop or None,
                state=before,
                return_state=save_state is not None,
                streamer=None if silent else _streamer(words, skip_prompt=not prompts),
                compile=compile,
                progress=progress,
            )
        if several and max_new_tokens and out.texts is not None:
            for question, answer in zip(prompts or [""] * len(out.texts), out.texts, strict=True):
                print(f"{question}{answer}\n")
        if save_state is not None and out.state is not None:
            out.state.save(save_state, network)
            size = out.state.num_bytes() / 1e6
            print(f"state after {max(out.state.tokens):,} tokens: {save_state} ({size:.1f} MB)", file=sys.stderr)


def chat(
    model: Model,
    state: State = None,
    max_new_tokens: NewTokens = 512,
    temperature: Temperature = 0.7,
    top_k: TopK = None,
    top_p: TopP = 0.95,
    seed: Seed = None,
    stop: Stop = None,
    device: Device = None,
    dtype: Dtype = None,
    tokenizer: Tokenizer = None,
    compile: Compile = False,
) -> None:
    """Talk to a saved model.

    The state goes on from turn to turn: nothing is read twice, however long the talk. /save FILE keeps it, /load FILE
    takes it up again, /reset forgets, /quit (or Ctrl-D) ends; Ctrl-C stops an answer, as if it had not been asked for.
    A tokenizer with a chat template is used with it; with any other, turns are lines.
    """
    needs_transformers()
    from swila.generation import GenerationState
    from swila.generation import generate as run
    from swila.generation.api import stop_tokens

    with one_line_errors():
        network, words = _load(model, tokenizer, device, dtype, state)
        now = None if state is None else GenerationState.load(state, network)
    ends = stop or [token for token in {*stop_tokens(network), words.eos_token_id} if token is not None]
    turn, last = 0, None
    print(COMMANDS)
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        command, _, argument = line.strip().partition(" ")
        if command == "/quit":
            return
        if not line.strip():
            continue
        try:
            if command == "/reset":
                now, last = None, None
                print("forgotten")
            elif command in ("/save", "/load") and not argument:
                print(f"{command} needs the name of a file")
            elif command == "/save" and now is not None:
                now.save(argument, network)
                print(f"{max(now.tokens):,} tokens in {argument}, {now.num_bytes() / 1e6:.1f} MB")
            elif command == "/load":
                now, last = GenerationState.load(argument, network), None
                print(f"{max(now.tokens):,} tokens from {argument}")
            elif command.startswith("/"):
                print("there is nothing to save yet" if command == "/save" else COMMANDS)
            else:
                out = run(
                    network,
                    [turn_tokens(words, line, now is None, last)],
                    words,
                    max_new_tokens=max_new_tokens,
                    temperature=temperature,
                    top_k=top_k,
                    top_p=top_p,
                    seed=None if seed is None else seed + turn,
                    stop=ends,
                    state=now,
                    return_state=True,
                    streamer=_streamer(words, skip_prompt=True),
                    compile=compile,
                )
                now, turn, last = out.state, turn + 1, out.tokens[0][-1]
        except (ValueError, OSError) as error:
            print(error)
        except KeyboardInterrupt:
            print("\n(stopped; as if it had not been asked for)")


def turn_tokens(tokenizer: Any, text: str, first: bool, last: int | None) -> list[int]:
    """The tokens a user's turn adds: by the tokenizer's chat template, all that comes after the last answer.

    Args:
        tokenizer: of the model.
        text: what the user says.
        first: whether nothing was said before.
        last: the last token of the last answer, if it is known; what ends an answer is added unless this was it.
    """
    from swila.generation.prompts import as_tokens

    if not getattr(tokenizer, "chat_template", None):
        return as_tokens(text if first else "\n" + text, tokenizer, goes_on=not first)[0]
    answer = "THE-ANSWER"
    before = [] if first else [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    turns = [*before, {"role": "user", "content": text}]
    said = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    if not first:
        said = said.split(answer, 1)[1]
    tokens = list(tokenizer(said, add_special_tokens=False)["input_ids"])
    return tokens[1:] if not first and tokens[:1] == [last] else tokens


def _load(
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


def _streamer(tokenizer: Any, skip_prompt: bool) -> Any:
    from transformers import TextStreamer

    return TextStreamer(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)


@contextmanager
def _reading() -> Iterator[Callable[[int, int], None]]:
    """A progress bar for reading a long prompt, which appears when there is more than one stretch of it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=done < total)
            if done >= total:
                bar.stop()

        yield show
