"""n-gram models that count within a problem: a baseline for models that learn a language in context."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def ngram_distribution(inputs: Tensor, order: int, vocab_size: int, separator: int) -> Tensor:
    """Return the predictions of an n-gram model that counts within each problem, and backs off to shorter contexts.

    The prediction at a position is the distribution of the symbols that followed the same last ``order - 1`` tokens at
    earlier positions of the problem. If there are none, the context is shortened by one token, and so on. The empty
    context counts all symbols so far; before the first symbol the prediction is uniform. Separators are never counted
    as following symbols.

    A context does not extend beyond the start of its string, but includes it: the separator may be its first token, and
    the first string has one too. With ``order`` 3 and separator 7::

        inputs         3      2        5        7      3      2
        context      (7 3)  (3 2)    (2 5)     (7)   (7 3)  (3 2)
        prediction     3    2 or 3  2, 3 or 5   3      2      5

    The first three contexts are new, and so are the last tokens of them, which leaves the symbols so far.

    Args:
        inputs: Tokens, long ``[N, T]``; 0 is padding, at the end only.
        order: Order n of the model, at least 1.
        vocab_size: Vocabulary size V.
        separator: Token between strings.

    Returns:
        Probabilities ``[N, T, V]`` of the next token; undefined at padding.
    """
    if order < 1:
        raise ValueError(f"order must be at least 1, got {order}")
    V = vocab_size
    text = F.pad(inputs, (1, 0), value=separator)
    counted = F.one_hot(F.pad(text[:, 1:], (0, 1)), V).int()  # the next token
    counted[..., 0] = counted[..., separator] = 0

    symbols = torch.ones(V, device=inputs.device)
    symbols[0] = symbols[separator] = 0
    probabilities = (symbols / symbols.sum()).expand(*text.shape, V)
    problem = torch.arange(len(text), device=inputs.device).unsqueeze(1).expand_as(text)
    context = problem
    for n in range(1, order + 1):
        if n > 1:
            shorter = F.pad(context[:, :-1], (1, 0)).where(text != separator, problem)
            context = (shorter * V + text).unique(return_inverse=True)[1]
        counts = _earlier(context.flatten(), counted.flatten(0, 1)).view_as(counted)
        total = counts.sum(2, keepdim=True)
        probabilities = torch.where(total > 0, counts / total.clamp_min(1), probabilities)
    return probabilities[:, 1:]


def _earlier(group: Tensor, counted: Tensor) -> Tensor:
    """Return for each entry of ``counted [M, V]`` the sum of the earlier entries of its group."""
    order = group.argsort(stable=True)
    grouped = counted[order]
    before = grouped.cumsum(0, dtype=torch.int32) - grouped
    first = torch.searchsorted(group[order], group[order])
    return torch.empty_like(before).index_copy_(0, order, before - before[first])
