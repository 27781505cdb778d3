"""``swila generate`` and ``swila chat``: text from a saved model."""

from __future__ import annotations

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
State = Annotated[Path | None, typer.Option(help="Saved state to go on from.")]


def generate(
    model: Model,
    prompt: Annotated[list[str] | None, typer.Argument(help="One or more prompts.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file, of any length.")] = None,
    state: State = None,
    save_state: Annotated[Path | None, typer.Option(help="Save the state after the text here.")] = None,
    max_new_tokens: NewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = None,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Annotated[list[int] | None, typer.Option(help="Token id that ends a text; repeat for several.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    tokenizer: Tokenizer = None,
    compile: Compile = False,
) -> None:
    """Continue prompts with a saved model.

    One prompt is streamed; several are generated side by side. With --save-state, what the model has read is kept in a
    file, and --state goes on from there: a long document is read once.
    """
    needs_transformers()
    with one_line_errors():
        if file is not None:
            prompt = [*(prompt or []), file.read_text()]
        if not prompt and state is None:
            fail("a prompt, --file or --state must be given")
        from swila.generation import GenerationState
        from swila.generation import generate as run

        network, words = _load(model, tokenizer, device, dtype)
        before = None if state is None else GenerationState.load(state, network)
        several = max(len(prompt or []), 0 if before is None else len(before)) > 1
        with _reading() as progress:
            out = run(
                network,
                prompt or None,
                words,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                stop=stop or None,
                state=before,
                return_state=save_state is not None,
                streamer=None if several else _streamer(words, skip_prompt=file is not None or not prompt),
                compile=compile,
                progress=progress,
            )
        if several and out.texts is not None:
            for question, answer in zip(prompt or [""] * len(out.texts), out.texts, strict=True):
                print(f"{question}{answer}\n")
        if save_state is not None and out.state is not None:
            out.state.save(save_state, network)
            size = out.state.num_bytes() / 1e6
            print(f"state after {max(out.state.tokens):,} tokens: {save_state} ({size:.1f} MB)")


def chat(
    model: Model,
    state: State = None,
    max_new_tokens: NewTokens = 512,
    temperature: Temperature = 0.7,
    top_k: TopK = None,
    top_p: TopP = 0.95,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    tokenizer: Tokenizer = None,
    compile: Compile = False,
) -> None:
    """Talk to a saved model.

    The state goes on from turn to turn: nothing is read twice, however long the talk. /save FILE keeps it, /load FILE
    takes it up again, /reset forgets, /quit (or Ctrl-D) ends. A tokenizer with a chat template is used with it, any
    other as it is.
    """
    needs_transformers()
    from swila.generation import GenerationState
    from swila.generation import generate as run

    with one_line_errors():
        network, words = _load(model, tokenizer, device, dtype)
        now = None if state is None else GenerationState.load(state, network)
    turn = 0
    print("/save FILE, /load FILE, /reset, /quit")
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
                now = None
            elif command in ("/save", "/load") and not argument:
                print(f"{command} needs the name of a file")
            elif command == "/save" and now is not None:
                now.save(argument, network)
                print(f"{max(now.tokens):,} tokens in {argument}, {now.num_bytes() / 1e6:.1f} MB")
            elif command == "/load":
                now = GenerationState.load(argument, network)
                print(f"{max(now.tokens):,} tokens from {argument}")
            elif command.startswith("/"):
                print("there is nothing to save yet" if command == "/save" else f"no such command: {command}")
            else:
                out = run(
                    network,
                    [_turn(words, line, first=now is None)],
                    words,
                    max_new_tokens=max_new_tokens,
                    temperature=temperature,
                    top_k=top_k,
                    top_p=top_p,
                    seed=None if seed is None else seed + turn,
                    state=now,
                    return_state=True,
                    streamer=_streamer(words, skip_prompt=True),
                    compile=compile,
                )
                now, turn = out.state, turn + 1
        except (ValueError, OSError) as error:
            print(error)
        except KeyboardInterrupt:
            print("\n(stopped; as if it had not been said)")


def _turn(tokenizer: Any, text: str, first: bool) -> list[int]:
    """The tokens of what a user says; by the tokenizer's chat template, what a turn adds to those before it."""
    if getattr(tokenizer, "chat_template", None):
        turn = [{"role": "user", "content": text}]
        before = [] if first else [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        said = tokenizer.apply_chat_template(before, tokenize=False) if before else ""
        whole = tokenizer.apply_chat_template([*before, *turn], tokenize=False, add_generation_prompt=True)
        tokens = tokenizer(whole.removeprefix(said), add_special_tokens=False)["input_ids"]
    else:
        tokens = tokenizer(text)["input_ids"]
    begins = tokenizer.bos_token_id is not None and tokens[:1] == [tokenizer.bos_token_id]
    return list(tokens) if first or not begins else list(tokens[1:])


def _load(model: str, tokenizer: str | None, device: str | None, dtype: str | None) -> tuple[Any, Any]:
    """Model and tokenizer, where and as they are wanted."""
    import torch
    from transformers import AutoTokenizer
    from transformers.utils import logging

    from swila import SwiLAForCausalLM

    logging.disable_progress_bar()
    where = parse_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kind = parse_dtype(dtype or ("bfloat16" if where.startswith("cuda") else "float32"))
    network = SwiLAForCausalLM.from_pretrained(model, dtype=kind).to(where).eval()
    return network, AutoTokenizer.from_pretrained(tokenizer or model)


def _streamer(tokenizer: Any, skip_prompt: bool) -> Any:
    from transformers import TextStreamer

    return TextStreamer(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)


@contextmanager
def _reading() -> Iterator[Callable[[int, int], None]]:
    """A progress bar for reading a long prompt, which appears when there is more than one stretch of it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=False) as bar:
        task = bar.add_task("reading", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=done < total)
            if done >= total:
                bar.stop()

        yield show
