"""Automata as tensors of transitions, and whether two of them have the same language."""

from __future__ import annotations

import torch
from torch import Tensor


def sorted_edges(automata: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the edges of every state by ascending symbol: symbols and targets ``[N, S, E]``, and counts ``[N, S]``.

    E is the largest count; entries beyond a state's own count have target -1.
    """
    legal = automata >= 0
    degree = legal.sum(2)
    symbols = legal.byte().argsort(dim=2, descending=True, stable=True)[..., : int(degree.max())]
    return symbols, automata.gather(2, symbols), degree


def canonical(automata: Tensor) -> Tensor:
    """Return the minimal automaton of the same language, its states numbered in breadth-first order.

    Two automata ``[N, S, symbols]`` (see :meth:`RegBench.automata`) have the same language if and only if their
    canonical forms are equal. They then also give the same strings the same probabilities, since all edges of a state
    are equally likely.

    Two states are equivalent if they have the same symbols, and each symbol leads to equivalent states. The largest
    such relation is found by refinement: it starts from the first condition and enforces the second until nothing
    changes. All states are accepting.
    """
    N, S, _ = automata.shape
    _, targets, _ = sorted_edges(automata)
    edges = targets.clamp_min(0).unbind(2)  # equivalent states lack the same edges
    pairs = [(edge.unsqueeze(2) * S + edge.unsqueeze(1)).flatten(1) for edge in edges]
    legal = automata >= 0
    finer = (legal.unsqueeze(2) == legal.unsqueeze(1)).all(3).flatten(1)
    same = torch.zeros_like(finer)
    while not torch.equal(same, finer):
        same = finer
        for pair in pairs:
            finer = finer & same.gather(1, pair)
    first = same.view(N, S, S).byte().argmax(2)  # the first equivalent state

    number, queue, met = automata.new_full((N, S), -1), automata.new_zeros(N, S), automata.new_ones(N, 1)
    number[:, 0] = 0
    for i in range(S):
        state = queue[:, i : i + 1]
        for target in targets.unbind(2):
            reached = target.gather(1, state)
            exists = (reached >= 0) & (met > i)
            reached = first.gather(1, reached.clamp_min(0))
            known = number.gather(1, reached)
            new = exists & (known < 0)
            number.scatter_(1, reached, torch.where(new, met, known))
            last = met.clamp_max(S - 1)
            queue.scatter_(1, last, torch.where(new, reached, queue.gather(1, last)))
            met = met + new
    edges_of_met = automata.gather(1, queue.unsqueeze(2).expand_as(automata))
    renumbered = number.gather(1, first).gather(1, edges_of_met.clamp_min(0).flatten(1)).view_as(edges_of_met)
    return renumbered.masked_fill(
        (edges_of_met < 0) | (torch.arange(S, device=automata.device) >= met).unsqueeze(2), -1
    )
