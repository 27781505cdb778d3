"""What counting can do: a yardstick for models that learn a language in context."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def ngram_distribution(inputs: Tensor, order: int, vocab_size: int, separator: int) -> Tensor:
    """Predictions of an n-gram model that counts within each problem, and backs off to shorter contexts.

    At each place: of all earlier places of the same problem with the same last ``order - 1`` tokens, which symbols
    followed, and how often? If none did, one token less is compared, and so on down to none, where all symbols so far
    count, and if there are none, all are equally likely. Separators are never counted as what followed.

    A context does not reach beyond the beginning of its string, but it does tell that the string begins there: the
    separator may be its first token, and there is one before the first string too. With ``order`` 3, where 7 is the
    separator::

        inputs         3      2        5        7      3      2
        context      (7 3)  (3 2)    (2 5)     (7)   (7 3)  (3 2)
        prediction     3    2 or 3  2, 3 or 5   3      2      5

    The first three contexts are new, nor is any of their last tokens known, which leaves the symbols so far.

    Args:
        inputs: long ``[N, T]``; 0 is padding, and comes last.
        order: n, at least 1.
        vocab_size: V.
        separator: the token between strings.

    Returns:
        Probabilities ``[N, T, V]`` of what follows; at padding they mean nothing.
    """
    if order < 1:
        raise ValueError(f"order must be at least 1, got {order}")
    V = vocab_size
    text = F.pad(inputs, (1, 0), value=separator)
    counted = F.one_hot(F.pad(text[:, 1:], (0, 1)), V).int()  # what follows
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
    """For each row of ``counted`` ``[M, V]``, the sum of the earlier rows of its group."""
    order = group.argsort(stable=True)
    rows = counted[order]
    before = rows.cumsum(0, dtype=torch.int32) - rows
    first = torch.searchsorted(group[order], group[order])
    return torch.empty_like(before).index_copy_(0, order, before - before[first])
