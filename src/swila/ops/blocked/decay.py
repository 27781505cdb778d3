r"""Products over pairs of tokens in a chunk, weighted by the decay between them, without overflow.

With ``α_i = exp(a_i) ≤ 1`` per channel, a token ``t`` that reads what ``s < t`` wrote sees it through

.. math::  \Gamma_{t,s} = \prod_{s < i \le t} \alpha_i    \qquad\text{(post-decay reads: } s < i < t\text{)}.

In the form ``exp(G_t) · exp(-G_s)``, with cumulative sums G, the second factor overflows under strong decay. But ``Γ``
splits at *any* token between ``s`` and ``t`` into two factors that are both at most one, and recursive halving of the
chunk places a split between every pair. Each of the ``log2 C`` levels is one batched matrix product, and each exponent
is a sum over neighbouring tokens, never a difference of large numbers.

Shapes: channels ``[..., C, D]``, C tokens, a power of 2; pair matrices ``[..., C, C]`` with entry ``[t, s]``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class Undecayed:
    """The pair products for ``α = 1``: plain matrix products. Also the interface of :class:`Decayed`."""

    def gram(self, x: Tensor, y: Tensor, own: bool = False) -> Tensor:
        """``M[t, s] = Σ_D x_t Γ_ts y_s`` for ``s < t``, and ``x_t · y_t`` on the diagonal with ``own``."""
        return (x @ y.mT).tril(0 if own else -1)

    def read(self, M: Tensor, y: Tensor) -> Tensor:
        """``Σ_{s<=t} M[t, s] Γ_ts y_s``: the derivative of ``<M, gram(x, y)>`` in ``x``."""
        return M @ y

    def write(self, M: Tensor, x: Tensor) -> Tensor:
        """``Σ_{t>=s} M[t, s] Γ_ts x_t``: the derivative of ``<M, gram(x, y)>`` in ``y``."""
        return M.mT @ x

    def from_start(self, x: Tensor) -> Tensor:
        """``x`` multiplied by the decay since the start of the chunk."""
        return x

    def to_end(self, y: Tensor) -> Tensor:
        """``y`` multiplied by the decay until the end of the chunk."""
        return y

    def across(self, W: Tensor, dim: int) -> Tensor:
        """State ``W`` decayed over the whole chunk, with channels along ``dim``."""
        return W


class Decayed(Undecayed):
    """The pair products for ``log_alpha [..., C, D]``; ``inclusive`` includes the decay of the reading token."""

    def __init__(self, log_alpha: Tensor, inclusive: bool) -> None:
        self.upto = _upto if inclusive else _before
        self.since = _since if inclusive else _after
        self.start = self.upto(log_alpha).exp()
        self.end = _after(log_alpha).exp()
        self.total = log_alpha.sum(-2).exp()
        self.levels = []
        size = log_alpha.shape[-2] // 2
        while size:
            early, late = _halves(log_alpha, size)
            self.levels.append((size, _after(early).exp(), self.upto(late).exp()))
            size //= 2

    def gram(self, x: Tensor, y: Tensor, own: bool = False) -> Tensor:
        C = x.shape[-2]
        batch = torch.broadcast_shapes(self.total.shape[:-1], x.shape[:-2], y.shape[:-2])
        M = x.new_zeros(*batch, C, C)
        for size, early, late in self.levels:
            _blocks(M, size).copy_((_halves(x, size)[1] * late) @ (_halves(y, size)[0] * early).mT)
        if own:
            M.diagonal(dim1=-2, dim2=-1).copy_((x * y).sum(-1))
        return M

    def read(self, M: Tensor, y: Tensor) -> Tensor:
        out = M.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) * y
        for size, early, late in self.levels:
            _halves(out, size)[1].add_(late * (_blocks(M, size) @ (_halves(y, size)[0] * early)))
        return out

    def write(self, M: Tensor, x: Tensor) -> Tensor:
        out = M.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) * x
        for size, early, late in self.levels:
            _halves(out, size)[0].add_(early * (_blocks(M, size).mT @ (_halves(x, size)[1] * late)))
        return out

    def from_start(self, x: Tensor) -> Tensor:
        return self.start * x

    def to_end(self, y: Tensor) -> Tensor:
        return self.end * y

    def across(self, W: Tensor, dim: int) -> Tensor:
        return self.total.unsqueeze(-1 if dim == -2 else -2) * W

    def gram_adjoint(self, M: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Derivatives of ``<M, gram(x, y)>`` in x and y (those of ``read`` and ``write``) and in ``log_alpha``.

        For ``log_alpha``, each pair contributes to the tokens it spans, so no terms cancel.
        """
        own = M.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        dx, dy = own * y, own * x
        grad = torch.zeros_like(dx)
        for size, early, late in self.levels:
            block, x_late, y_early = _blocks(M, size), _halves(x, size)[1], _halves(y, size)[0]
            reads, writes = late * (block @ (early * y_early)), early * (block.mT @ (late * x_late))
            grad_early, grad_late = _halves(grad, size)
            _halves(dx, size)[1].add_(reads)
            _halves(dy, size)[0].add_(writes)
            grad_early.add_(_before(y_early * writes))
            grad_late.add_(self.since(x_late * reads))
        return dx, dy, grad

    def start_gradient(self, x: Tensor, grad: Tensor) -> Tensor:
        """``d<grad, from_start(x)> / d log_alpha``."""
        return self.since(self.start * x * grad)

    def end_gradient(self, y: Tensor, grad: Tensor) -> Tensor:
        """``d<grad, to_end(y)> / d log_alpha``."""
        return _before(self.end * y * grad)

    def across_gradient(self, W: Tensor, grad: Tensor, dim: int) -> Tensor:
        """``d<grad, across(W)> / d log_alpha``, the same for every token of the chunk."""
        return (self.across(W, dim) * grad).sum(-1 if dim == -2 else -2).unsqueeze(-2)


UNDECAYED = Undecayed()


def _halves(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Views of the early and the late tokens of each block of ``2 size``: ``[..., C / 2 size, size, D]``."""
    return x.unflatten(-2, (-1, 2, size)).unbind(-3)


def _blocks(M: Tensor, size: int) -> Tensor:
    """View of the entries (late reader, early writer) of each block: ``[..., C / 2 size, size, size]``."""
    late_early = M.unflatten(-1, (-1, 2, size)).select(-2, 0).unflatten(-3, (-1, 2, size)).select(-4, 1)
    return late_early.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _upto(x: Tensor) -> Tensor:
    return x.cumsum(-2)


def _before(x: Tensor) -> Tensor:
    return F.pad(x[..., :-1, :].cumsum(-2), (0, 0, 1, 0))


def _since(x: Tensor) -> Tensor:
    return x.flip(-2).cumsum(-2).flip(-2)


def _after(x: Tensor) -> Tensor:
    return _before(x.flip(-2)).flip(-2)
