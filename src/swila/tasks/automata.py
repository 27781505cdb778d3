"""Automata as tensors of transitions, and when two of them speak the same language."""

from __future__ import annotations

import torch
from torch import Tensor


def sorted_edges(automata: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The edges of every state by ascending symbol: their symbols and targets ``[N, S, E]``, and how many ``[N, S]``.

    E is the largest number; what is beyond a state's own has target -1.
    """
    legal = automata >= 0
    degree = legal.sum(2)
    symbols = legal.byte().argsort(dim=2, descending=True, stable=True)[..., : int(degree.max())]
    return symbols, automata.gather(2, symbols), degree


def canonical(automata: Tensor) -> Tensor:
    """The smallest automaton of the same language, its states numbered as a breadth-first search meets them.

    So two automata ``[N, S, symbols]`` (see :meth:`RegBench.automata`) have the same language, and being uniform over
    edges the same strings with the same probabilities, if and only if they are equal here.

    States are the same if they have the same symbols, and these lead to states that are the same: what is left of the
    first condition when the second is enforced until nothing changes. All states accept, so there is no other.
    """
    N, S, _ = automata.shape
    _, targets, _ = sorted_edges(automata)
    edges = targets.clamp_min(0).unbind(2)  # states that are compared lack the same ones
    pairs = [(edge.unsqueeze(2) * S + edge.unsqueeze(1)).flatten(1) for edge in edges]
    legal = automata >= 0
    finer = (legal.unsqueeze(2) == legal.unsqueeze(1)).all(3).flatten(1)
    same = torch.zeros_like(finer)
    while not torch.equal(same, finer):
        same = finer
        for pair in pairs:
            finer = finer & same.gather(1, pair)
    first = same.view(N, S, S).byte().argmax(2)  # of the states like it

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
    rows = automata.gather(1, queue.unsqueeze(2).expand_as(automata))
    renumbered = number.gather(1, first).gather(1, rows.clamp_min(0).flatten(1)).view_as(rows)
    return renumbered.masked_fill((rows < 0) | (torch.arange(S, device=automata.device) >= met).unsqueeze(2), -1)
