"""exp and log that LLVM can vectorise: polynomials in float32, the C library's functions in float64.

They are compiled without fast-math, which would remove their compensation terms. Numba's disk cache does not notice
changes of this file: delete the ``__pycache__`` beside it after a change.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

f32, i32 = np.float32, np.int32
LOG2E, LN2_HIGH, LN2_LOW = f32(1.44269504), f32(0.693359375), f32(-2.12194440e-4)
LEAST = f32(-87.3)  # below it exp is not a normal number
ONE, HALF = f32(1), f32(0.5)
E0, E1, E2, E3, E4, E5 = map(f32, (1.9875691e-4, 1.3981999e-3, 8.3334519e-3, 4.1665796e-2, 1.6666665e-1, 5.0000001e-1))
L0, L1, L2, L3, L4, L5, L6, L7, L8 = map(
    f32,
    (7.0376836e-2, -1.151461e-1, 1.1676998e-1, -1.2420141e-1, 1.4249323e-1, -1.6668057e-1, 2.0000714e-1, -2.4999994e-1,
     3.3333331e-1),
)  # fmt: skip
SQRT_HALF = f32(0.70710678)


@intrinsic
def as_float(typing_context, bits):
    """Reinterpret int32 as float32."""
    return types.float32(types.int32), lambda context, builder, sig, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic
def as_bits(typing_context, x):
    """Reinterpret float32 as int32."""
    return types.int32(types.float32), lambda context, builder, sig, args: builder.bitcast(args[0], ir.IntType(32))


@njit(cache=True, forceinline=True)
def exp32(x):
    """``e^x`` to about one unit in the last place, 0 below the normal numbers; x at most 88."""
    y = x if x > LEAST else LEAST
    n = np.floor(y * LOG2E + HALF)
    y = (y - n * LN2_HIGH) - n * LN2_LOW
    p = ((((E0 * y + E1) * y + E2) * y + E3) * y + E4) * y + E5
    p = (p * (y * y) + y + ONE) * as_float(i32((i32(n) + i32(127)) << i32(23)))
    return x if x != x else (p if x >= LEAST else f32(0))


@njit(cache=True, forceinline=True)
def log32(x):
    """``log x`` to about one unit in the last place, for normal positive numbers."""
    bits = as_bits(x)
    m = as_float(i32((bits & i32(0x007FFFFF)) | i32(0x3F000000)))
    small = m < SQRT_HALF
    e = f32((bits >> i32(23)) - i32(126)) - (ONE if small else f32(0))
    y = (m + m if small else m) - ONE
    z = y * y
    p = ((((((((L0 * y + L1) * y + L2) * y + L3) * y + L4) * y + L5) * y + L6) * y + L7) * y + L8) * y * z
    return x if x != x else y + (p + e * LN2_LOW - HALF * z) + e * LN2_HIGH


def exp(x):
    """``e^x``; in compiled code in the dtype of x."""
    return math.exp(x)


def log(x):
    """``log x``; in compiled code in the dtype of x."""
    return math.log(x)


@overload(exp)
def _exp(x):
    return (lambda x: exp32(x)) if x == types.float32 else (lambda x: math.exp(x))


@overload(log)
def _log(x):
    return (lambda x: log32(x)) if x == types.float32 else (lambda x: math.log(x))
