"""Text generation from prompts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.utils.rnn import pad_sequence

from swila.generation.decoder import Decoder, DecoderSpec, rounded_up
from swila.generation.guard import as_count, as_seed, check_model, check_state, evaluating, taking_turns
from swila.generation.prompt_graphs import release_graphs
from swila.generation.prompts import Prompts, as_rows, prefill
from swila.generation.sampling import Sampling
from swila.generation.state import GenerationState
from swila.ops.fused.choice import serves

_decoders: WeakKeyDictionary[Any, Decoder] = WeakKeyDictionary()


@dataclass
class Generation:
    """Result of :func:`generate`.

    Attributes:
        tokens: New tokens of each prompt, including the stop token.
        texts: Text of the new tokens, without special tokens; None without a tokenizer.
        stopped: Whether each text ended with a stop token.
        state: State after the prompt and the new tokens; None unless requested.
    """

    tokens: list[list[int]]
    texts: list[str] | None
    stopped: list[bool]
    state: GenerationState | None


@torch.no_grad()
def generate(
    model: Any,
    prompts: Prompts | None = None,
    tokenizer: Any = None,
    *,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int | None = None,
    stop: int | Sequence[int] | None = None,
    state: GenerationState | None = None,
    return_state: bool = False,
    streamer: Any = None,
    compile: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Generation:
    """Generate continuations of prompts. On a GPU, a decode step is one replay of a CUDA graph with the state in place.

    Prompts may differ in length; each is continued as if it were alone. Graphs and their buffers are kept with the
    model and reused by later calls of the same shape. Calls from several threads take turns on a GPU.

    Args:
        model: A :class:`swila.SwiLAForCausalLM`.
        prompts: Text, token ids, or a list of either; None to continue from ``state``.
        tokenizer: Tokenizer for prompts that are text, and for the texts of the result.
        max_new_tokens: Maximum number of new tokens per prompt; 0 only processes the prompts.
        temperature: Sampling temperature; 0 selects the most likely token.
        top_k: Sample from the k most likely tokens. Default: all.
        top_p: Sample from the most likely tokens whose probabilities sum to this value. Default: 1, all.
        seed: Seed of the samples, from 0 to 2**64 - 1; they also depend on the number of rows. Default: drawn from
            torch's default generator.
        stop: Token ids that end a text. Default: the model's ``eos_token_id``; ``()`` for none.
        state: State to continue from: returned by :func:`swila.prefill` or an earlier call, or loaded from a file. It
            must have been made with the same weights, and is not modified. A state with one row serves all prompts.
        return_state: Whether to return the state after the last token.
        streamer: Receives the tokens ``[B]`` of every step: a streamer of transformers, such as ``TextStreamer``, or a
            function.
        compile: Whether to compile the decode step with ``torch.compile``: the first call is slow, later ones faster.
            It has no effect on blocks whose step runs in fused kernels, which is so on a GPU with Triton for most
            models (not for FoX and mixtures of memories, under autocast, or with more than 128 rows).
        progress: Progress of the prompt processing; see :func:`swila.prefill`.
    """
    check_model(model)
    check_state(state)
    sampling = Sampling(temperature, top_k, top_p)
    max_new_tokens = as_count("max_new_tokens", max_new_tokens, 0)
    seed = None if seed is None else as_seed(seed)
    put = streamer if streamer is None or not hasattr(streamer, "put") else streamer.put
    if put is not None and not callable(put):
        raise ValueError(f"streamer must have put and end, as transformers' have, or be a function, got {streamer!r}")
    parts = [part for layer in model.model.layers for part in (layer, layer.mixer)]
    if any(part._forward_hooks or part._forward_pre_hooks for part in parts):
        raise ValueError(
            "model must have no forward hooks on blocks or mixers: decode steps do not call them; use model.generate"
        )
    rows = None if prompts is None else as_rows(prompts, tokenizer, state is not None)
    prompt_ids: list[list[int]] = [[]]
    if rows is not None and (put is not None or tokenizer is not None):
        prompt_ids = rows.lists()
    with evaluating(model):
        if rows is not None:
            state = prefill(model, rows, None, state, progress=progress)
        elif state is None:
            raise ValueError("prompts or state must be given, got neither")
        else:
            state.check_fits(model)
        ends = stop_tokens(model, stop)
        if max_new_tokens == 0:
            nothing: list[list[int]] = [[] for _ in state.tokens]
            texts = None if tokenizer is None else [""] * len(state)
            return Generation(nothing, texts, [False] * len(state), state if return_state else None)
        decoder = _decoder(model, state, max_new_tokens, sampling, ends, compile)
        decoder.load(state, int(torch.randint(2**62, (), device="cpu")) if seed is None else seed)
        before, state = state.tokens, None  # the decoder has a copy; free the memory
        if put is not None and put is not streamer:  # transformers' streamers expect the prompt first
            copies = len(before) // len(prompt_ids)
            read = [torch.tensor(ids, dtype=torch.long, device="cpu") for ids in prompt_ids * copies]
            put(pad_sequence(read, batch_first=True))
        try:
            decoder.run(max_new_tokens, put)
        finally:
            if hasattr(streamer, "end"):
                streamer.end()
        tokens = [_up_to_stop(row, ends) for row in decoder.tokens[:max_new_tokens].mT.tolist()]
        read_by_now = [a + len(b) for a, b in zip(before, tokens, strict=True)]
        after = decoder.state(read_by_now) if return_state else None
        _decoders[model] = decoder  # for the next call
    return Generation(
        tokens,
        None
        if tokenizer is None
        else [_text(tokenizer, *row) for row in zip(_ends(prompt_ids, tokens), tokens, strict=True)],
        [bool(row) and row[-1] in ends for row in tokens],
        after,
    )


def _ends(prompt_ids: list[list[int]], tokens: list[list[int]]) -> list[list[int]]:
    """Return the last tokens of each prompt; empty lists if one prompt state was used for several rows."""
    return [row[-8:] for row in prompt_ids] if len(prompt_ids) == len(tokens) else [[] for _ in tokens]


def _text(tokenizer: Any, before: list[int], tokens: list[int]) -> str:
    """Return the text of new tokens; decoded after earlier ones, since tokenizers may drop the first word's space."""
    head = tokenizer.decode(before, skip_special_tokens=True)
    whole = tokenizer.decode(before + tokens, skip_special_tokens=True)
    return whole[len(head) :] if whole.startswith(head) else tokenizer.decode(tokens, skip_special_tokens=True)


def release(model: Any) -> None:
    """Free the buffers and graphs that are kept with a model."""
    with taking_turns(model):
        _decoders.pop(model, None)
        release_graphs(model)


def stop_tokens(model: Any, stop: int | Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the tokens that end a text: ``stop``, or those of the model's configuration."""
    if stop is None:
        generation = getattr(model, "generation_config", None)
        stop = getattr(generation, "eos_token_id", None)
        stop = model.config.eos_token_id if stop is None else stop
    if stop is None:
        return ()
    if isinstance(stop, str) or (isinstance(stop, Sequence) and any(isinstance(token, str) for token in stop)):
        raise ValueError(f"stop must be token ids, got {stop!r}; for text, use model.generate(stop_strings=...)")
    try:
        return tuple(map(operator.index, stop)) if isinstance(stop, Sequence) else (operator.index(stop),)
    except TypeError:
        raise ValueError(f"stop must be a token id, or a list of them, got {stop!r}") from None


def _decoder(
    model: Any, state: GenerationState, max_new_tokens: int, sampling: Sampling, stop: tuple[int, ...], compiled: bool
) -> Decoder:
    """Return the model's decoder if it fits, else a new one. It is taken from the model while in use."""
    capacity = rounded_up(max(state.tokens) + max_new_tokens) if model.model.attends else 0
    pad = -1 if model.config.pad_token_id is None else model.config.pad_token_id
    kind = model.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    dtypes = (*state.dtypes(), autocast)
    room, fused = rounded_up(max_new_tokens), serves(state.hidden)
    spec = DecoderSpec(len(state), capacity, room, sampling, stop, pad, compiled, dtypes, fused)
    known = _decoders.pop(model, None)
    if known is not None and known.fits(spec):
        return known
    del known  # free its memory before allocating
    return Decoder(model, spec)


def _up_to_stop(tokens: list[int], stop: tuple[int, ...]) -> list[int]:
    ends = [i for i, token in enumerate(tokens) if token in stop]
    return tokens[: ends[0] + 1] if ends else tokens
