"""Triton kernel of :mod:`swila.ops.fused.partial_sums`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def partial_sums_kernel(parts, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the sums of some columns."""
    col = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, rows, ROWS):
        row = (first + tl.arange(0, ROWS))[:, None]
        total += tl.load(parts + row.to(tl.int64) * columns + col, mask=(row < rows) & (col < columns), other=0.0)
    sums = tl.sum(total, axis=0)[None, :]
    tl.store(out + col, sums.to(out.dtype.element_ty), mask=col < columns)
