"""What a greedy decode loop does between the layers: choose a token and embed it, and keep the last hidden state."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Loop(NamedTuple):
    """Buffers of a decode loop of B rows.

    Attributes:
        at: Number of the step, int64 ``[1]``.
        done: Finished rows, bool ``[B]``.
        broken: First step, from 1, at which the logits of a row are not finite, else 0; int64 ``[B]``.
        tokens: Tokens of all steps, int64 ``[steps, B]``.
        alive: Rows that the step processes, bool ``[B]``.
    """

    at: Tensor
    done: Tensor
    broken: Tensor
    tokens: Tensor
    alive: Tensor


def pick_token(logits: Tensor, embedding: Tensor, stop: Tensor, loop: Loop, pad: int) -> Tensor:
    """Take the most likely token of each row, the first of several, and return the embedded tokens ``[B, width]``.

    ``loop`` is updated, except for ``at``. A finished row shows ``pad``, and its embedding is 0.

    Args:
        logits: ``[B, vocabulary]``.
        embedding: ``[vocabulary, width]``.
        stop: Tokens that finish a row, int64 ``[any]``.
        loop: Buffers of the loop.
        pad: Token of finished rows.
    """
    from swila.ops.fused.next_token_kernels import pick

    (B, N), D = logits.shape, embedding.shape[1]
    x = embedding.new_empty(B, D)
    block = min(8192, 1 << (N - 1).bit_length())
    pick[(B,)](
        logits, embedding, stop, loop.at, loop.done, loop.broken, loop.tokens, loop.alive, x, logits.stride(0), B, pad,
        N=N, D=D, STOPS=len(stop), BLOCK=block, WIDTH=min(2048, 1 << (D - 1).bit_length()), num_warps=16,
    )  # fmt: skip
    return x


def pick_token_reference(logits: Tensor, embedding: Tensor, stop: Tensor, loop: Loop, pad: int) -> Tensor:
    """:func:`pick_token` in plain torch."""
    logits = logits.float()
    alive = ~loop.done
    broken = ~logits.amax(-1).isfinite() & alive & (loop.broken == 0)
    loop.broken.add_(broken * (loop.at + 1))
    token = logits.argmax(-1).where(alive, pad)
    loop.tokens.index_copy_(0, loop.at, token.unsqueeze(0))
    loop.alive.copy_(alive)
    loop.done.logical_or_((token.unsqueeze(1) == stop).any(1))
    return embedding[token.where(alive, 0)].where(alive.unsqueeze(1), 0)


def keep_hidden(x: Tensor, weight: Tensor, eps: float, hidden: Tensor, loop: Loop) -> None:
    """Write the RMSNorm of ``x [B, width]`` to the alive rows of ``hidden``, and count the step."""
    from swila.ops.fused.next_token_kernels import keep

    B, D = x.shape
    width = 1 << (D - 1).bit_length()
    keep[(B,)](x, weight, hidden, loop.alive, loop.at, eps, D=D, WIDTH=width, num_warps=4)


def keep_hidden_reference(x: Tensor, weight: Tensor, eps: float, hidden: Tensor, loop: Loop) -> None:
    """:func:`keep_hidden` in plain torch."""
    normed = F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(hidden.dtype)
    hidden.copy_(torch.where(loop.alive.unsqueeze(1), normed, hidden))
    loop.at.add_(1)
