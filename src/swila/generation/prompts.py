"""Processing of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swila.generation.fingerprint import weights_fingerprint
from swila.generation.guard import as_count, check_model, check_state, evaluating
from swila.generation.prompt_graphs import prompt_graphs
from swila.generation.state import GenerationState
from swila.layers import Cache
from swila.layers.cache import join_rows
from swila.ops.validation import INTEGER

Prompts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | Tensor | Mapping[str, Any]

PASS = 131072  # most tokens of all rows in one pass of the model
MASK = 2**31  # most pairs of a new and an earlier token, for which attention has a mask
LEAST = 256  # tokens of each row in one pass, however many rows there are
CHUNK_SIZE = {True: 4096, False: 16384}  # most tokens of a row: with attention to earlier tokens, and without attention


class Rows(NamedTuple):
    """Token ids of prompts.

    Attributes:
        ids: Ids ``[B, longest]``, int64, padded with 0 on the right.
        lengths: Number of tokens of each row.
    """

    ids: Tensor
    lengths: list[int]

    def take(self, some: slice) -> Rows:
        """Return some of the rows, no longer than they need to be."""
        lengths = self.lengths[some]
        return Rows(self.ids[some, : max(lengths)], lengths)

    def lists(self) -> list[list[int]]:
        """Return the rows as lists."""
        return [row[:length] for row, length in zip(self.ids.tolist(), self.lengths, strict=True)]


def as_rows(prompts: Prompts | Rows, tokenizer: Any, continued: bool = False) -> Rows:
    """Return prompts of any kind as one tensor; see :func:`as_tokens`. A tensor ``[B, T]`` stays where it is."""
    if isinstance(prompts, Rows):
        return prompts
    if isinstance(prompts, Tensor) and prompts.ndim == 2 and prompts.dtype in INTEGER and prompts.numel() > 0:
        return Rows(prompts.long(), [prompts.shape[1]] * prompts.shape[0])
    rows = as_tokens(prompts, tokenizer, continued)
    lengths = [len(row) for row in rows]
    ids = torch.zeros(len(rows), max(lengths), dtype=torch.long, device="cpu")
    for i, row in enumerate(rows):
        try:
            ids[i, : len(row)] = torch.tensor(row, dtype=torch.long, device="cpu")
        except (OverflowError, RuntimeError, ValueError):
            raise ValueError(f"prompts must hold ids that are 64-bit integers, got {max(row, key=abs)}") from None
    return Rows(ids, lengths)


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
    prompts: Prompts | Rows,
    tokenizer: Any = None,
    state: GenerationState | None = None,
    chunk_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GenerationState:
    """Process prompts and return the state after them.

    Long prompts are processed in chunks, so that memory does not grow with their length (except for keys and values of
    attention). Models with attention read many rows in groups, each at once. On a GPU, up to 8 short prompts of a
    recurrent model are read by a replay of a CUDA graph, from the third pass of a form on; see
    :mod:`swila.generation.prompt_graphs`.

    Args:
        model: A :class:`swila.SwiLAForCausalLM`.
        prompts: Text, token ids, or a list of either, of any lengths.
        tokenizer: Tokenizer for prompts that are text.
        state: State to continue from, made with the same weights; it is not modified. A state with one row is used for
            all prompts. The tokenizer's start token is removed from text that continues a state.
        chunk_size: Number of tokens of each row per chunk, with all rows at once. Default: such that a pass of the
            model has at most 131,072 tokens (but 256 of each row), and 16,384 of a row, or 4,096 for models with
            attention that continue a text.
        progress: Called after each pass with the number of processed tokens of each row (on average) and the length of
            the longest prompt.
    """
    check_model(model)
    check_state(state)
    rows = as_rows(prompts, tokenizer, state is not None)
    if state is not None:
        state.check_fits(model)
    chunk_size = None if chunk_size is None else as_count("chunk_size", chunk_size, 1)
    if state is not None and len(state) != len(rows.lengths):
        if len(state) != 1:
            raise ValueError(
                f"state must have one row, or one for each of {len(rows.lengths)} prompts, got {len(state)}"
            )
        state = state[[0] * len(rows.lengths)]
    if state is None and not all(rows.lengths):
        raise ValueError("prompts must have at least one token each, or a state to continue from")
    wrong = (rows.ids < 0) | (rows.ids >= model.config.vocab_size)
    if bool(wrong.any()):
        first = int(rows.ids[wrong][0])
        raise ValueError(f"prompts must hold ids below vocab_size = {model.config.vocab_size}, got {first}")
    weights = weights_fingerprint(model) if state is None else state.weights
    count, longest = len(rows.lengths), max(rows.lengths)
    earlier = 0 if state is None else max(state.tokens)
    group, chunk_size = passes(count, longest, model.model.attends, earlier, chunk_size)
    caches: list[Cache] = []
    ends: list[Tensor] = []
    with evaluating(model):
        for first in range(0, count, group):
            some = slice(first, min(first + group, count))
            part = rows.take(some)
            begun = state if state is None or group >= count else state[some]
            cache = Cache() if begun is None else begun.cache.released()
            last = before = None if begun is None else begun.hidden
            for hidden, tokens in _read(model, part, cache, before, chunk_size):
                last = hidden
                if progress is not None:
                    done = first + len(part.lengths) * tokens / max(part.lengths)  # rows
                    progress(int(done * longest / count), longest)
            assert last is not None
            ends.append(last)
            caches.append(cache)
    read = [a + b for a, b in zip([0] * count if state is None else state.tokens, rows.lengths, strict=True)]
    whole = caches[0] if len(caches) == 1 else join_rows(caches)
    return GenerationState(whole, torch.cat(ends), model.config.layer_mixers, read, weights)


def passes(rows: int, longest: int, attends: bool, earlier: int = 0, chunk_size: int | None = None) -> tuple[int, int]:
    """Return the number of rows that are read together, and the number of tokens of each in one pass of the model.

    Recurrent layers read all rows together, in stretches of time. Attention is fastest without a cache of earlier
    tokens, so a row is read at once where that fits, and rows in groups.

    Args:
        rows: Number of rows.
        longest: Number of tokens of the longest.
        attends: Whether the model has attention layers.
        earlier: Largest number of earlier tokens of a row.
        chunk_size: Number of tokens of each row in one pass, if the user gives it.
    """
    if chunk_size is not None:
        return rows, chunk_size
    if not attends:
        return rows, min(max(PASS // rows, LEAST), CHUNK_SIZE[False])
    if earlier == 0 and longest <= PASS:
        return min(rows, PASS // longest), longest
    most = min(PASS, MASK // (earlier + longest)) // CHUNK_SIZE[True]
    return min(rows, max(most, 1)), CHUNK_SIZE[True]


def _read(model: Any, rows: Rows, cache: Cache, hidden: Tensor | None, chunk_size: int) -> Iterator[tuple[Tensor, int]]:
    """Read rows into a cache; after every pass yield the last hidden state of each row, and the number of tokens read.

    ``hidden`` is the last hidden state of rows that have no token.
    """
    longest, shortest, device = max(rows.lengths), min(rows.lengths), model.device
    lengths = torch.tensor(rows.lengths, dtype=torch.long, device="cpu")
    graphs = prompt_graphs(model)
    for start in range(0, longest, chunk_size):
        end = min(start + chunk_size, longest)
        ids = rows.ids[:, start:end].to(device, non_blocking=True)
        here = (lengths - start).clamp(0, end - start)
        if graphs is not None and graphs.fits(here.tolist()):
            hidden = graphs.read([row[:count] for row, count in zip(ids, here.tolist(), strict=True)], cache)
            yield hidden, end
            continue
        if shortest >= end:
            out = model.model(ids, past_key_values=cache, use_cache=True, return_dict=True)
            hidden = out.last_hidden_state[:, -1].clone()  # a view would keep all of them
        else:
            here = here.to(device)
            mask = (torch.arange(end - start, device=device) < here.unsqueeze(1)).long()
            out = model.model(ids, attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True)
            last = out.last_hidden_state[torch.arange(len(here), device=device), (here - 1).clamp_min(0)]
            hidden = last if hidden is None else torch.where((here > 0).unsqueeze(1), last, hidden)
        del out
        yield hidden, end
