"""``swila chat``: a talk with a saved model, whose state goes on from turn to turn."""

from __future__ import annotations

from typing import Any

from swila.cli.options import needs_transformers, one_line_errors
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
)

COMMANDS = "/save FILE, /load FILE, /reset, /quit"


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
    from swila.generation.guard import SEEDS, as_seed

    with one_line_errors():
        if seed is not None:
            as_seed(seed)
        network, words = load_model(model, tokenizer, device, dtype, state)
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
                    seed=None if seed is None else (seed + turn) % SEEDS,
                    stop=ends,
                    state=now,
                    return_state=True,
                    streamer=make_streamer(words, skip_prompt=True),
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
        return as_tokens(text if first else "\n" + text, tokenizer, continued=not first)[0]
    answer = "THE-ANSWER"
    before = [] if first else [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    turns = [*before, {"role": "user", "content": text}]
    said = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    if not first:
        said = said.split(answer, 1)[1]
    tokens = list(tokenizer(said, add_special_tokens=False)["input_ids"])
    return tokens[1:] if not first and tokens[:1] == [last] else tokens
