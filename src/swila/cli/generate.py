"""``swila generate``: text from a saved model."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swila.cli.options import fail, needs_transformers, one_line_errors
from swila.cli.text import (
    Compile,
    Device,
    Dtype,
    Model,
    NewTokens,
    Seed,
    State,
    Stop,
    Temperature,
    Tokenizer,
    TopK,
    TopP,
    load_model,
    make_streamer,
    read_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def generate(
    model: Model,
    prompt: Annotated[
        list[str] | None, typer.Argument(help="One or more prompts; - reads a prompt from standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Text file to read before the prompts.")] = None,
    state: State = None,
    save_state: Annotated[
        Path | None,
        typer.Option(help="File for the state after the prompt and the new tokens; with -n 0, after the prompt."),
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

    With one prompt, the text is printed as it is generated; several prompts are generated as a batch. --save-state
    saves the state of the model to a file, and --state resumes from it, so a long document is read only once:
    --file BOOK --save-state FILE -n 0.
    """
    needs_transformers()
    with one_line_errors():
        if not prompt and file is None and state is None:
            fail("a prompt, --file or --state must be given")
        if temperature == 0 and (top_k is not None or top_p < 1 or seed is not None):
            fail("--seed, --top-k and --top-p have no effect without --temperature")
        prompts = [read_text(None) if text == "-" else text for text in prompt or []]
        text = None if file is None else read_text(file)
        from swila.generation import GenerationState, prefill
        from swila.generation import generate as run
        from swila.generation.guard import as_seed

        if seed is not None:
            as_seed(seed)  # fails before the model is loaded
        network, words = load_model(model, tokenizer, device, dtype, state)
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
                streamer=None if silent else make_streamer(words, skip_prompt=not prompts),
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


@contextmanager
def _reading() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar while a long prompt is read; not for a prompt that is read in one call."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=done < total)
            if done >= total:
                bar.stop()

        yield show
