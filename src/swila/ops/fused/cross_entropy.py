"""Cross-entropy of rows of logits, with its gradient, in one pass over memory.

::

    loss_t = logsumexp(z_t) - z_t[y_t],   dz_t = softmax(z_t) - onehot(y_t),   both 0 where y_t is -100
"""

from __future__ import annotations

import torch
from torch import Tensor

from swila.ops.fused.choice import serves

IGNORE = -100
BLOCK, WARPS = 4096, 8


def cross_entropy_with_gradient(z: Tensor, target: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the loss of each row ``[N]`` in float32 (float64 for float64), and write its gradient to ``out``.

    A row is read twice: for the normaliser, then (from the GPU's cache) for the gradient. Nothing is differentiable.

    Args:
        z: Logits ``[N, vocabulary]``.
        target: Labels ``[N]``; -100 for rows without a loss. For another label outside of the vocabulary, the kernel
            returns NaN, and the twin raises an error.
        out: ``[N, vocabulary]`` of any floating dtype; may be ``z`` itself. Default: no gradient.
    """
    if not serves(z, out):
        return cross_entropy_reference(z, target, out)
    loss = z.new_empty(z.shape[0], dtype=torch.float32)
    if not z.shape[0]:
        return loss
    from swila.ops.fused.cross_entropy_kernels import cross_entropy_kernel

    z = z if z.stride(1) == 1 else z.contiguous()
    assert out is None or out.stride(1) == 1
    with torch.cuda.device_of(z):
        cross_entropy_kernel[(z.shape[0],)](
            z, target.contiguous(), loss, z if out is None else out, z.shape[1], z.stride(0),
            0 if out is None else out.stride(0), IGNORE=IGNORE, GRADIENT=out is not None, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return loss


def cross_entropy_reference(z: Tensor, target: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the same as :func:`cross_entropy_with_gradient`, in plain torch."""
    full = z.to(torch.promote_types(z.dtype, torch.float32))
    y = target.unsqueeze(1)
    counted = y != IGNORE
    y = y.where(counted, 0)
    normaliser = full.logsumexp(1, keepdim=True)
    loss = (normaliser - full.gather(1, y)).where(counted, 0.0).squeeze(1)
    if out is not None:
        dz = (full.sub_(normaliser) if out is z and full is z else full - normaliser).exp_()
        dz.scatter_add_(1, y, dz.new_full((1, 1), -1.0).expand_as(y))
        dz.mul_(counted)
        if out is not dz:
            out.copy_(dz)
    return loss
