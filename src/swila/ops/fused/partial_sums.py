"""The last step of the gradient of a weight: the sum of what each program of a kernel has summed."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS, COLUMNS = 256, 32  # tile of a program


def sum_of_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sums ``[N]`` over the rows of ``parts [P, N]``, float32 with contiguous rows, rounded to a dtype.

    One launch sums and rounds, in an order that does not depend on the GPU.
    """
    from swila.ops.fused.partial_sums_kernels import partial_sums_kernel

    (rows, columns), grid = parts.shape, (-(-parts.shape[1] // COLUMNS),)
    out = torch.empty(columns, dtype=dtype, device=parts.device)
    with torch.cuda.device_of(parts):
        partial_sums_kernel[grid](parts, out, rows, columns, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=8)
    return out
