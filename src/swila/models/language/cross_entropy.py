"""Cross-entropy of a linear head that never holds the logits of all tokens.

The head is by far the widest layer of a small language model: for 131,072 tokens and a vocabulary of 32,000 its logits
take 16.8 GB in float32, and their gradient as much again. Here logits exist for a few thousand tokens at a time. The
gradients are computed together with the loss in the forward call, so that nothing is computed twice; on a GPU one
kernel turns logits into loss and dz::

    z = W x,   loss = Σ_t (logsumexp z_t - z_t[y_t]),   dz = softmax(z) - onehot(y),   dx = Wᵀ dz,   dW = Σ_t dz_t x_tᵀ

torch's own ``linear_cross_entropy`` is not used: it requires torch 2.13, breaks graphs under ``torch.compile``, and
returns the loss of bfloat16 inputs in bfloat16, with two or three digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from swila.ops.fused.cross_entropy import IGNORE, cross_entropy_with_gradient

# Logits of a chunk, in float32. Each chunk reads and writes dW [vocabulary, D], in float32, once, as its logits, in
# addition to products of 6 D operations per logit. For a vocabulary of 32,000 and D = 1,024 that is a tenth of the time
# of the products of the 2,048 tokens in 256 MB, and partly hidden by them.
LOGIT_BYTES = 256 * 2**20
CHUNK_MULTIPLE = 128  # tokens: the tile of matrix products


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor, chunk_size: int | None = None) -> Tensor:
    """Return ``Σ_t CE(W x_t, y_t)`` over the tokens with a label, in float32 (float64 for float64).

    Args:
        x: Hidden states ``[N, D]``.
        weight: Weight of the head, ``[vocabulary, D]``.
        target: Labels ``[N]``; -100 for tokens without a label.
        chunk_size: Number of tokens per chunk. Default: :func:`default_chunk`.
    """
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    if chunk_size is None:
        chunk_size = default_chunk(weight.shape[0])
    gradients = torch.is_grad_enabled()
    return torch.ops.swila.linear_cross_entropy(
        x, weight, target, chunk_size, gradients and x.requires_grad, gradients and weight.requires_grad
    )[0]


def chunked_cross_entropy(
    head: Callable[[Tensor], Tensor], x: Tensor, target: Tensor, chunk_size: int | None, vocabulary: int
) -> Tensor:
    """Return the same for any head, which is called on one chunk at a time, and again in the backward pass.

    Args:
        head: Function from hidden states to logits.
        x: Input of the head, ``[N, ...]``.
        target: Labels ``[N]``; -100 for tokens without a label.
        chunk_size: Number of tokens per chunk. Default: :func:`default_chunk`.
        vocabulary: Width of the logits.
    """

    def loss(part: Tensor, labels: Tensor) -> Tensor:
        logits = head(part)
        full = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(full, labels, reduction="sum", ignore_index=IGNORE)

    size = chunk_size or default_chunk(vocabulary)
    parts = [
        checkpoint(loss, *pair, use_reentrant=False) for pair in zip(x.split(size), target.split(size), strict=True)
    ]
    return torch.stack(parts).sum()


def default_chunk(vocabulary: int) -> int:
    """Return the number of tokens whose logits take :data:`LOGIT_BYTES`, if possible a multiple of 128."""
    tokens = max(LOGIT_BYTES // (4 * vocabulary), 1)
    return tokens if tokens < CHUNK_MULTIPLE else tokens // CHUNK_MULTIPLE * CHUNK_MULTIPLE


@torch.library.custom_op("swila::linear_cross_entropy", mutates_args=())
def _linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, chunk_size: int, want_dx: bool, want_dw: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, and its gradients for ``x`` and ``weight`` if requested (else empty tensors)."""
    full = torch.float64 if x.dtype == torch.float64 else torch.float32
    loss = x.new_zeros((), dtype=full)
    dx = torch.empty_like(x) if want_dx else x.new_empty(0)
    dw = torch.zeros_like(weight, dtype=full) if want_dw else x.new_empty(0)
    for start in range(0, x.shape[0], chunk_size):
        span = slice(start, start + chunk_size)
        z = _product(x[span], weight.mT, full)
        if not want_dx and not want_dw:
            loss += cross_entropy_with_gradient(z, target[span]).sum()
            del z  # before the next chunk has its own
            continue
        dz = z if z.dtype == x.dtype else torch.empty_like(z, dtype=x.dtype)
        loss += cross_entropy_with_gradient(z, target[span], dz).sum()
        if want_dx:
            torch.mm(dz, weight, out=dx[span])
        if want_dw:
            _accumulate(dw, dz.mT, x[span])
        del z, dz
    return loss, dx, dw  # not in float16: a sum over tokens overflows


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``a @ b`` in ``dtype``, without rounding the sum to half precision where possible."""
    if a.is_cuda and a.dtype in (torch.float16, torch.bfloat16):
        return torch.mm(a, b, out_dtype=dtype)
    if a.dtype == torch.float16:  # the largest float16, 65,504, is soon exceeded
        a, b = a.to(dtype), b.to(dtype)
    return (a @ b).to(dtype)


def _accumulate(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add ``a @ b`` to ``total``, of higher precision: within the product where torch can, on recent GPU versions."""
    if a.is_cuda and a.dtype in (torch.float16, torch.bfloat16) and _adds_in_product(a.dtype, total.dtype, a.device):
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += _product(a, b, total.dtype)


@cache
def _adds_in_product(dtype: torch.dtype, full: torch.dtype, device: torch.device) -> bool:
    """Return whether ``addmm`` adds to a matrix of higher precision; early versions want one dtype for all three."""
    total, a = torch.ones(16, 16, dtype=full, device=device), torch.ones(16, 16, dtype=dtype, device=device)
    try:
        torch.addmm(total, a, a, out_dtype=full, out=total)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 17).all())


@_linear_cross_entropy.register_fake
def _(
    x: Tensor, weight: Tensor, target: Tensor, chunk_size: int, want_dx: bool, want_dw: bool
) -> tuple[Tensor, Tensor, Tensor]:
    full = torch.float64 if x.dtype == torch.float64 else torch.float32
    dx = torch.empty_like(x) if want_dx else x.new_empty(0)
    dw = torch.empty_like(weight, dtype=full) if want_dw else x.new_empty(0)
    return x.new_empty((), dtype=full), dx, dw


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.want_dx, ctx.want_dw = inputs[4:]
    ctx.dtype = inputs[1].dtype
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad: Tensor, _dx: Tensor, _dw: Tensor) -> tuple[Tensor | None, ...]:
    dx, dw = ctx.saved_tensors
    gradients = (dx * grad).to(dx.dtype) if ctx.want_dx else None, (dw * grad).to(ctx.dtype) if ctx.want_dw else None
    return *gradients, None, None, None, None


_linear_cross_entropy.register_autograd(_backward, setup_context=_keep)
