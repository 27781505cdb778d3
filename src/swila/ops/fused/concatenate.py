"""Concatenation of weights for the backward pass, as an operator of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swila.ops.fused.layout import STRIDED

_library = torch.library.Library("swila", "FRAGMENT")
_library.define("concatenate_again(Tensor[] weights, int spare, ScalarType dtype) -> Tensor", tags=STRIDED)


def concatenate(weights: Sequence[Tensor], spare: int, dtype: torch.dtype) -> Tensor:
    """Return matrices ``[out_i, in]`` as one ``[Σ out_i + spare, in]`` of a dtype; the spare rows are zeros."""
    rows = [*weights, weights[0].new_zeros(spare, weights[0].shape[1])] if spare else list(weights)
    return torch.cat(rows).to(dtype)


def concatenate_again(weights: Sequence[Tensor], spare: int, dtype: torch.dtype) -> Tensor:
    """Return the same in a backward pass.

    A compiler would merge :func:`concatenate` with that of the forward pass, and might keep the result between the two.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # for gradients of gradients
        return concatenate(weights, spare, dtype)
    return torch.ops.swila.concatenate_again(list(weights), spare, dtype)


_library.impl("concatenate_again", concatenate, "CompositeExplicitAutograd")


@torch.library.register_fake("swila::concatenate_again", lib=_library)
def _fake(weights: Sequence[Tensor], spare: int, dtype: torch.dtype) -> Tensor:
    return weights[0].new_empty((sum(len(w) for w in weights) + spare, weights[0].shape[1]), dtype=dtype)
