"""The sigmoid that Triton kernels share."""

from __future__ import annotations

import os

import triton
import triton.language as tl

# the interpreter, which runs kernels on a CPU, has no machine instructions
COMPILED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") in ("", "0"))


@triton.jit
def sigmoid(x):
    """Return ``1 / (1 + exp(-x))`` of float32 numbers, to a few roundings.

    Four instructions instead of the twelve of ``tl.sigmoid``, which also scales operands so that numbers below the
    smallest normal one keep their precision. Here they are zero.
    """
    if COMPILED:
        y = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1; add.ftz.f32 $0, $0, 0f3F800000; rcp.approx.ftz.f32 $0, $0;",
            "=f,f",
            [x * -1.4426950408889634],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        y = tl.sigmoid(x)
    return y
