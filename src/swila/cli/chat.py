"""``swila chat``: a conversation with a saved model, which keeps its state from turn to turn."""

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
    """Chat with a saved model.

    The model keeps its state from turn to turn, so it reads no turn twice, however long the conversation. Commands:
    /save FILE saves the state, /load FILE resumes from a saved state, /reset clears it, /quit (or Ctrl-D) exits. Ctrl-C
    stops an answer and discards the turn. If the tokenizer has a chat template, it is applied; otherwise a turn is a
    line of text.
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
                print("the state is cleared")
            elif command in ("/save", "/load") and not argument:
                print(f"{command} needs the name of a file")
            elif command == "/save" and now is not None:
                now.save(argument, network)
                print(f"{max(now.tokens):,} tokens in {argument}, {now.num_bytes() / 1e6:.1f} MB")
            elif command == "/load":
                now, last = GenerationState.load(argument, network), None
                print(f"{max(now.tokens):,} tokens from {argument}")
            elif command.startswith("/"):
                print("there is no state to save yet" if command == "/save" else COMMANDS)
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
            print("\n(stopped; the turn is discarded)")


def turn_tokens(tokenizer: Any, text: str, first: bool, last: int | None) -> list[int]:
    """Return the tokens that a turn of the user adds: with a chat template, everything after the last answer.

    Args:
        tokenizer: Tokenizer of the model.
        text: Text of the user.
        first: Whether this is the first turn.
        last: Last token of the last answer if it is known. The template's end of an answer is added unless it is this.
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
