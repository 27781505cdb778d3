"""Processing of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from swila.generation.fingerprint import weights_fingerprint
from swila.generation.guard import as_count, check_model, check_state, evaluating
from swila.generation.state import GenerationState
from swila.layers import Cache

Prompts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Tensor | Mapping[str, Any]

CHUNK_SIZE = {True: 4096, False: 16384}  # default, with and without attention layers


def as_tokens(prompts: Prompts, tokenizer: Any, continued: bool = False) -> list[list[int]]:
    """Return prompts of any kind as lists of token ids.

    Args:
        prompts: Text, token ids, a list of either, or a mapping with ``input_ids``.
        tokenizer: Tokenizer for text, or None.
        continued: Whether the text continues an earlier one; then the tokenizer's start token is removed.
    """
    if isinstance(prompts, Mapping):  # the output of a tokenizer
        if "input_ids" not in prompts:
            raise ValueError(f"prompts must have input_ids if they are a mapping, got {', '.join(map(str, prompts))}")
        ids = as_tokens(prompts["input_ids"], None)
        masks = (
            as_tokens(prompts["attention_mask"], None) if "attention_mask" in prompts else [[1] * len(r) for r in ids]
        )
        if [len(row) for row in ids] != [len(mask) for mask in masks]:
            raise ValueError("attention_mask must be as long as input_ids in prompts, got other lengths")
        pairs = [zip(row, mask, strict=True) for row, mask in zip(ids, masks, strict=True)]
        return [[token for token, kept in pair if kept] for pair in pairs]
    given: Any = [prompts] if isinstance(prompts, str) else _plain(prompts)
    if isinstance(given, list) and given and all(isinstance(token, int) for token in given):
        given = [given]
    if not isinstance(given, list):
        raise ValueError(f"prompts must be text, token ids, or a list of them, got {type(prompts).__name__}")
    if not given:
        raise ValueError("prompts must hold at least one prompt, got none")
    return [_row(row, tokenizer, continued) for row in given]


def _row(prompt: Any, tokenizer: Any, continued: bool) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError("tokenizer must be given for prompts that are text; or pass token ids")
        tokens = list(tokenizer(prompt)["input_ids"])
        begins = getattr(tokenizer, "bos_token_id", None)
        return tokens[1:] if continued and begins is not None and tokens[:1] == [begins] else tokens
    row = _plain(prompt)
    if not isinstance(row, list) or not all(isinstance(token, int) for token in row):
        raise ValueError(f"prompts must be text, token ids [T] or [B, T], or a list of them, got {prompt!r}"[:300])
    return row


def _plain(x: Any) -> Any:
    """Convert tensors, arrays and sequences to lists; return anything else unchanged."""
    if hasattr(x, "tolist"):
        return x.tolist()
    return list(x) if isinstance(x, Sequence) and not isinstance(x, str) else x


@torch.no_grad()
def prefill(
    model: Any,
    prompts: Prompts,
    tokenizer: Any = None,
    state: GenerationState | None = None,
    chunk_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GenerationState:
    """Process prompts and return the state after them.

    Long prompts are processed in chunks, so that memory does not grow with their length (except for keys and values of
    attention).

    Args:
        model: A :class:`swila.SwiLAForCausalLM`.
        prompts: Text, token ids, or a list of either, of any lengths.
        tokenizer: Tokenizer for prompts that are text.
        state: State to continue from, made with the same weights; it is not modified. A state with one row is used for
            all prompts. The tokenizer's start token is removed from text that continues a state.
        chunk_size: Number of tokens of each row per chunk. Default: 16,384, or 4,096 for models with attention.
        progress: Called after each chunk with the number of processed tokens and the length of the longest prompt.
    """
    check_model(model)
    check_state(state)
    prompt_ids = as_tokens(prompts, tokenizer, state is not None)
    if state is not None:
        state.check_fits(model)
    chunk_size = CHUNK_SIZE[model.model.attends] if chunk_size is None else as_count("chunk_size", chunk_size, 1)
    if state is not None and len(state) != len(prompt_ids):
        if len(state) != 1:
            raise ValueError(f"state must have one row, or one for each of {len(prompt_ids)} prompts, got {len(state)}")
        state = state[[0] * len(prompt_ids)]
    if state is None and not all(prompt_ids):
        raise ValueError("prompts must have at least one token each, or a state to continue from")
    if wrong := [token for row in prompt_ids for token in row if not 0 <= token < model.config.vocab_size]:
        raise ValueError(f"prompts must hold ids below vocab_size = {model.config.vocab_size}, got {wrong[0]}")
    lengths, longest, device = [len(row) for row in prompt_ids], max(map(len, prompt_ids)), model.device
    cache = Cache() if state is None else state.cache.released()
    weights = weights_fingerprint(model) if state is None else state.weights
    hidden = None if state is None else state.hidden
    padded = torch.zeros(len(prompt_ids), longest, dtype=torch.long, device="cpu")
    for i, row in enumerate(prompt_ids):
        padded[i, : len(row)] = torch.tensor(row, dtype=torch.long, device="cpu")
    with evaluating(model):
        for start in range(0, longest, chunk_size):
            ids = padded[:, start : start + chunk_size].to(device)
            here = torch.tensor([min(max(length - start, 0), ids.shape[1]) for length in lengths], device=device)
            ragged = any(length < start + ids.shape[1] for length in lengths)
            mask = (torch.arange(ids.shape[1], device=device) < here.unsqueeze(1)).long() if ragged else None
            out = model.model(ids, attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True)
            last = out.last_hidden_state[torch.arange(len(prompt_ids), device=device), (here - 1).clamp_min(0)]
            hidden = last if hidden is None else torch.where((here > 0).unsqueeze(1), last, hidden)
            if progress is not None:
                progress(min(start + chunk_size, longest), longest)
    assert hidden is not None
    before = [0] * len(prompt_ids) if state is None else state.tokens
    read = [a + b for a, b in zip(before, lengths, strict=True)]
    return GenerationState(cache, hidden, model.config.layer_mixers, read, weights)
