"""The gated activation ``silu(gate) ⊙ up`` of a SwiGLU layer.

With ``s = sigmoid(gate)`` and ``h = gate s up``::

    dgate = dh up (s + gate s (1 - s)),   dup = dh gate s

Both passes are computed in float32, and keep gate and up alone. Gate and up may be the halves of one tensor, and their
gradients are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from swila.ops.fused.choice import serves
from swila.ops.fused.layout import STRIDED
from swila.ops.fused.rms_norm import rows_of

ROWS, BLOCK = 4, 512  # tile of a program

_library = torch.library.Library("swila", "FRAGMENT")
_library.define("swiglu(Tensor gate, Tensor up) -> Tensor", tags=STRIDED)
_library.define("swiglu_backward(Tensor gate, Tensor up, Tensor grad) -> Tensor", tags=STRIDED)
_library.define("swiglu_backward_and_product(Tensor gate, Tensor up, Tensor grad) -> (Tensor, Tensor)", tags=STRIDED)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return ``silu(gate) * up``.

    Args:
        gate: ``[..., F]``; the last dimension should be contiguous.
        up: The same shape.
    """
    if gate.shape != up.shape:
        raise ValueError(f"up must have the shape of gate, {list(gate.shape)}, got {list(up.shape)}")
    if not serves(gate, up) or gate.dtype != up.dtype:
        return swiglu_reference(gate, up)
    if torch.compiler.is_compiling() and not torch.is_grad_enabled():  # the compiler fuses as well
        return swiglu_reference(gate, up)
    return _SwiGLU.apply(gate, up)


def swiglu_reference(gate: Tensor, up: Tensor) -> Tensor:
    """Return the same as :func:`swiglu`, in plain torch."""
    return F.silu(gate) * up


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.ops.swila.swiglu(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        dgate, dup = torch.ops.swila.swiglu_backward(gate, up, grad).chunk(2, -1)
        return dgate, dup


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    out = gate.new_empty(gate.shape)
    if not gate.numel():
        return out
    from swila.ops.fused.swiglu_kernels import swiglu_forward_kernel

    gate, up = rows_of(gate), rows_of(up)
    rows, dim = gate.shape
    with torch.cuda.device_of(gate):
        swiglu_forward_kernel[(-(-rows // ROWS), -(-dim // BLOCK))](
            gate, up, out, rows, dim, gate.stride(0), up.stride(0), ROWS=ROWS, BLOCK=BLOCK, num_warps=4
        )
    return out


def _swiglu_backward(gate: Tensor, up: Tensor, grad: Tensor) -> Tensor:
    return _launch_backward(gate, up, rows_of(grad))


def _swiglu_backward_and_product(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """As ``swiglu_backward``, and also return ``silu(gate) * up``, which a product reads.

    It does not overwrite ``grad``: the compiler would copy it before.
    """
    product = torch.empty_like(grad, memory_format=torch.contiguous_format)
    return _launch_backward(gate, up, rows_of(grad), product), product


def _launch_backward(gate: Tensor, up: Tensor, grad: Tensor, product: Tensor | None = None) -> Tensor:
    both = gate.new_empty(*gate.shape[:-1], 2 * gate.shape[-1])
    if not gate.numel():
        return both
    from swila.ops.fused.swiglu_kernels import swiglu_backward_kernel

    gate, up = rows_of(gate), rows_of(up)
    rows, dim = gate.shape
    with torch.cuda.device_of(gate):
        swiglu_backward_kernel[(-(-rows // ROWS), -(-dim // BLOCK))](
            gate, up, grad, both, both if product is None else product,
            rows, dim, gate.stride(0), up.stride(0), grad.stride(0),
            PRODUCT=product is not None, ROWS=ROWS, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return both


_library.impl("swiglu", _swiglu, "CompositeExplicitAutograd")
_library.impl("swiglu_backward", _swiglu_backward, "CompositeExplicitAutograd")
_library.impl("swiglu_backward_and_product", _swiglu_backward_and_product, "CompositeExplicitAutograd")


@torch.library.register_fake("swila::swiglu", lib=_library)
def _(gate: Tensor, up: Tensor) -> Tensor:
    return gate.new_empty(gate.shape)


@torch.library.register_fake("swila::swiglu_backward", lib=_library)
def _(gate: Tensor, up: Tensor, grad: Tensor) -> Tensor:
    return gate.new_empty(*gate.shape[:-1], 2 * gate.shape[-1])


@torch.library.register_fake("swila::swiglu_backward_and_product", lib=_library)
def _(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return gate.new_empty(*gate.shape[:-1], 2 * gate.shape[-1]), grad.new_empty(grad.shape)
