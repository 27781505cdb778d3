"""Which mixtures a trained SwiLA layer uses for the tokens of a CDAR sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from swila.layers import RoutingTrace, SwiLA
from swila.models import SyntheticModel
from swila.tasks import Examples


def routing(model: SyntheticModel, examples: Examples) -> RoutingTrace:
    """The shares of each token in the mixtures of the model's last layer, when it is written and when it is read."""
    layer = model.mixers[-1]
    if not isinstance(layer, SwiLA):
        raise ValueError(f"model must end with a SwiLA layer to look at, got {type(layer).__name__}")
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(examples.inputs)
    handle.remove()
    return layer.trace(seen[0])


def shares_by_context(trace: Tensor, context: Tensor, num_contexts: int) -> Tensor:
    """Mean shares ``[C, H, J, V]`` of a trace ``[B, T, H, J, V]`` over the tokens of each context.

    Args:
        trace: Shares of each token.
        context: Context of each token ``[B, T]``, from 1 to C, or -1 for none.
        num_contexts: Number of contexts C.
    """
    if (largest := int(context.max())) > num_contexts:
        raise ValueError(f"context must be numbered from 1 to num_contexts = {num_contexts}, got {largest}")
    return torch.stack([trace[context == c].mean(0) for c in range(1, num_contexts + 1)])


def mixture_of_context(shares: Tensor) -> Tensor:
    """The mixture that belongs to each context, for each output dim: ``[C, H, J, V]`` to ``[H V, C]``.

    Mixtures have no order of their own. They are matched greedily: the context and the mixture whose share is most
    above the mean over contexts come first.
    """
    C, _, J, _ = shares.shape
    excess = (shares - shares.mean(0)).permute(1, 3, 0, 2).flatten(0, 1).clone()  # [H V, C, J]
    order = torch.zeros(len(excess), C, dtype=torch.long)
    for d, table in enumerate(excess):
        for _ in range(min(C, J)):
            c, j = divmod(int(table.argmax()), J)
            order[d, c] = j
            table[c, :] = -torch.inf
            table[:, j] = -torch.inf
    return order
