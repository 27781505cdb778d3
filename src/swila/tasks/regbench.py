"""RegBench (Akyürek et al., 2024): random regular languages, to be learnt in context."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from swila.tasks.automata import canonical, sorted_edges
from swila.tasks.examples import IGNORE, Examples
from swila.tasks.streams import stream

BLOCK = 512  # number of automata, and of problems, drawn at a time
SPLITS = ("test", "val", "train")  # each excludes the automata of those before it
PATIENCE = 20  # blocks without a new automaton after which the search ends


@dataclass(frozen=True)
class AutomatonExamples(Examples):
    """Problems ``[N, T]`` of :class:`RegBench`; the context is the automaton's state after ``inputs[t]``.

    Attributes:
        legal: Legal next tokens, int32 ``[N, T]``: bit v is set if the automaton allows token v next, whatever the
            label is. After a separator these are the symbols of state 0; at padding there are none.
    """

    legal: Tensor

    def legal_mask(self, vocab_size: int) -> Tensor:
        """Return ``legal`` as bool ``[N, T, V]``."""
        return legal_mask(self.legal, vocab_size)

    def pad(self, length: int) -> AutomatonExamples:
        """Return the problems padded to T = ``length``."""
        more = (0, length - self.inputs.shape[1])
        return AutomatonExamples(
            F.pad(self.inputs, more, value=0),
            F.pad(self.labels, more, value=IGNORE),
            F.pad(self.context, more, value=-1),
            F.pad(self.legal, more, value=0),
        )


@dataclass(frozen=True)
class RegBench:
    r"""Strings of a new automaton, from which the model must infer which symbols may come next.

    Every problem has its own automaton, and consists of random walks on it. A walk starts in state 0 and follows the
    edges of its state with equal probabilities; it ends when its length is reached, in any state. With 6 symbols and
    edges::

        0 --3--> 1    0 --5--> 2    1 --2--> 0    2 --3--> 1

    the problem with the strings 3 2 5, 5 3 2 and 3 2 is::

        inputs    3    2    5    7    5    3    2    7    3
        labels    2    5    .    5    3    2    .    3    2
        context   1    0    2    0    2    1    0    0    1
        legal     2   3 5   3   3 5   3    2   3 5  3 5   2

    Tokens: 0 is padding, followed by the symbols; the last token, here 7, separates strings and is never a label. A
    prediction is correct if it is legal, whether or not the walk took that edge: see :func:`legality`, and
    :func:`total_variation` for the probabilities.

    All ranges include both ends, and all draws are uniform. For an automaton: the number of states, the size of its
    alphabet and the alphabet; then for each state the number of its edges, as many distinct symbols of the alphabet and
    as many distinct other states. For a problem: the number of strings, and the length of each.

    All automata of a split have different languages (:func:`canonical`), and no language is in two splits. ``"val"``
    and ``"test"`` do not depend on the number of training automata.

    Attributes:
        states: Range of the number of states of an automaton, unreachable ones included.
        alphabet: Range of the number of symbols of an automaton.
        edges: Range of the number of edges that leave a state.
        strings: Range of the number of strings of a problem.
        string_length: Range of the number of symbols of a string.
        symbols: Number of symbols from which alphabets are drawn.
        held_out: Number of automata in each of ``"val"`` and ``"test"``. Another number changes all draws.
    """

    states: tuple[int, int] = (4, 12)
    alphabet: tuple[int, int] = (4, 18)
    edges: tuple[int, int] = (1, 3)
    strings: tuple[int, int] = (10, 19)
    string_length: tuple[int, int] = (1, 49)
    symbols: int = 18
    held_out: int = 500

    def __post_init__(self) -> None:
        if not 1 <= self.symbols <= 30:
            raise ValueError(f"symbols must be from 1 to 30, got {self.symbols}")
        self._check_range("edges", 1)
        self._check_range("states", self.edges[1] + 1, f": each has up to {self.edges[1]} edges to different others")
        self._check_range("alphabet", self.edges[1], ": a state's edges have different symbols")
        if self.alphabet[1] > self.symbols:
            raise ValueError(f"alphabet must be at most symbols = {self.symbols}, got {self.alphabet}")
        self._check_range("strings", 1)
        shortest = 2 if self.strings[0] == 1 else 1
        self._check_range("string_length", shortest, ": there must be a symbol to predict")
        if self.held_out < 1:
            raise ValueError(f"held_out must be at least 1, got {self.held_out}")

    def _check_range(self, name: str, least: int, why: str = "") -> None:
        given = getattr(self, name)
        pair = tuple(given) if isinstance(given, list | tuple) else ()
        if len(pair) != 2 or not all(isinstance(end, int) for end in pair) or not least <= pair[0] <= pair[1]:
            raise ValueError(f"{name} must be a range (low, high) from {least} on{why}, got {given}")
        object.__setattr__(self, name, pair)  # JSON has lists only

    @property
    def vocab_size(self) -> int:
        """Vocabulary size V: padding, the symbols and the separator."""
        return self.symbols + 2

    @property
    def separator(self) -> int:
        """The token between strings, V - 1."""
        return self.symbols + 1

    @property
    def length(self) -> int:
        """Number of inputs of the longest possible problem; most problems are much shorter."""
        return self.strings[1] * (self.string_length[1] + 1) - 2

    def examples(self, count: int, split: str, seed: int = 0) -> AutomatonExamples:
        """Return ``count`` problems of ``"train"``, ``"val"`` or ``"test"``, the i-th of the i-th automaton.

        T is the length of the longest of them. A larger count begins with the same problems, but may have more padding.
        """
        automata = self.automata(count, split, seed)
        with torch.device("cpu"):
            blocks = enumerate(automata.split(BLOCK))
            parts = [self._problems(block, stream(seed, self, split, "strings", i)) for i, block in blocks]
            longest = max(part.inputs.shape[1] for part in parts)
            for i, part in enumerate(parts):
                parts[i] = part.pad(longest)  # one at a time, to save memory
            return AutomatonExamples.join(parts)

    def automata(self, count: int, split: str, seed: int = 0) -> Tensor:
        """Return the automata of a split.

        Returns:
            Long ``[count, S, symbols]``, with S the maximum number of states: the state to which symbol s (token s + 1)
            leads from each state, or -1.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of train, val and test, got {split!r}")
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        if split != "train" and count > self.held_out:
            raise ValueError(f"count must be at most held_out = {self.held_out} for {split}, got {count}")
        known: set[tuple[int, ...]] = set()
        with torch.device("cpu"):
            for earlier in SPLITS[: SPLITS.index(split)]:
                self._new_automata(self.held_out, earlier, seed, known)
            return self._new_automata(count, split, seed, known)

    def _new_automata(self, count: int, split: str, seed: int, known: set[tuple[int, ...]]) -> Tensor:
        """Return the first ``count`` automata drawn that are not in ``known``, and add them to it."""
        found: list[Tensor] = []
        block = fruitless = 0
        while fruitless < PATIENCE:
            drawn = self._automata(stream(seed, self, split, "automata", block))
            block, fruitless = block + 1, fruitless + 1
            for automaton, key in zip(drawn, map(tuple, canonical(drawn).flatten(1).tolist()), strict=True):
                if key not in known:
                    known.add(key)
                    found.append(automaton)
                    fruitless = 0
                if len(found) == count:
                    return torch.stack(found)
        raise ValueError(f"count is {count} for {split}, but no more than {len(found)} automata were found for {self}")

    def _automata(self, generator: torch.Generator) -> Tensor:
        S, A, E = self.states[1], self.symbols, self.edges[1]

        def between(ends: tuple[int, int], *shape: int) -> Tensor:
            return torch.randint(ends[0], ends[1] + 1, shape, generator=generator)

        state = torch.arange(S)
        exists = state < between(self.states, BLOCK, 1)  # [N, S]
        within = torch.rand(BLOCK, A, generator=generator).argsort(1) < between(self.alphabet, BLOCK, 1)
        symbols = torch.rand(BLOCK, S, A, generator=generator).masked_fill(~within.unsqueeze(1), -1)
        targets = torch.rand(BLOCK, S, S, generator=generator).masked_fill(~exists.unsqueeze(1), -1)
        targets[:, state, state] = -1
        kept = (torch.arange(E) < between(self.edges, BLOCK, S, 1)) & exists.unsqueeze(-1)
        chosen = targets.topk(E).indices.masked_fill(~kept, -1)
        return torch.full((BLOCK, S, A), -1).scatter_(2, symbols.topk(E).indices, chosen)

    def _problems(self, automata: Tensor, generator: torch.Generator) -> AutomatonExamples:
        """Return one problem for each of up to ``BLOCK`` automata; it does not depend on their number."""
        N, R, L = len(automata), self.strings[1], self.string_length[1]
        strings = torch.randint(self.strings[0], R + 1, (BLOCK, 1), generator=generator)[:N]
        lengths = torch.randint(self.string_length[0], L + 1, (BLOCK, R), generator=generator)[:N]
        noise = torch.rand(BLOCK, R, L, generator=generator)[:N]

        symbols, targets, degree = sorted_edges(automata)
        E = targets.shape[2]
        tokens, states = torch.zeros(N, R, L + 1, dtype=torch.long), torch.zeros(N, R, L + 1, dtype=torch.long)
        state = torch.zeros(N, R, dtype=torch.long)
        for t in range(L):
            edge = state * E + (noise[..., t] * degree.gather(1, state)).long()
            state = targets.flatten(1).gather(1, edge)
            tokens[..., t], states[..., t] = 1 + symbols.flatten(1).gather(1, edge), state
        tokens.scatter_(2, lengths.unsqueeze(-1), self.separator)
        states.scatter_(2, lengths.unsqueeze(-1), 0)

        # Concatenated strings, each with its separator; the last separator is in neither inputs nor labels.
        shown = (torch.arange(L + 1) <= lengths.unsqueeze(-1)) & (torch.arange(R) < strings).unsqueeze(-1)
        total = shown.flatten(1).sum(1, keepdim=True)
        T = int(total.max()) - 2
        filled = torch.arange(T + 2) < total
        text, context = torch.zeros(N, T + 2, dtype=torch.long), torch.zeros(N, T + 2, dtype=torch.long)
        text[filled], context[filled] = tokens[shown], states[shown]
        inputs, labels, context, past = text[:, :T], text[:, 1:-1], context[:, :T], ~filled[:, 2:]
        bits = ((automata >= 0).int() << torch.arange(1, self.symbols + 1)).sum(2, dtype=torch.int32)
        return AutomatonExamples(
            inputs.masked_fill(past, 0),
            labels.masked_fill(past | (labels == self.separator), IGNORE),
            context.masked_fill(past, -1),
            bits.gather(1, context).masked_fill(past, 0),
        )


def legal_mask(legal: Tensor, vocab_size: int) -> Tensor:
    """Return bits ``[...]`` as bool ``[..., V]``."""
    return legality(torch.arange(vocab_size, device=legal.device), legal.unsqueeze(-1))


def legality(predictions: Tensor, legal: Tensor) -> Tensor:
    """Return whether the automaton allows the predicted tokens, as bool.

    Args:
        predictions: Predicted tokens; tokens that are not symbols, and :data:`~swila.tasks.IGNORE`, are never legal.
        legal: See :class:`AutomatonExamples`; its shape must broadcast with that of ``predictions``.
    """
    return (legal.long() >> predictions.clamp(0, 62)) & 1 == 1


def total_variation(probabilities: Tensor, legal: Tensor) -> Tensor:
    r"""Return the distance ``½ Σ_v |p(v) - q(v)|`` from the automaton's distribution q, from 0 to 1.

    q is uniform over the legal symbols. At padding, where no symbol is legal, the distance is undefined.

    Args:
        probabilities: Predicted distribution p, ``[..., V]``.
        legal: Legal next tokens ``[...]``, see :class:`AutomatonExamples`.
    """
    mask = legal_mask(legal, probabilities.shape[-1]).to(probabilities.dtype)
    law = mask / mask.sum(-1, keepdim=True).clamp_min(1)
    return (probabilities - law).abs().sum(-1) / 2
