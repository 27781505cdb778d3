"""Sums of what programs have summed, beside torch."""

import pytest
import torch

from swila.ops.fused.partial_sums import COLUMNS, ROWS, sum_of_parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, COLUMNS), (ROWS + 3, COLUMNS + 1), (3 * ROWS, 3 * COLUMNS)])
def test_is_the_sum(rows, columns, dtype, device):
    memory = torch.full((rows + ROWS, columns), torch.nan)  # beyond the last row lies something else
    parts = memory[:rows].copy_(torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)))
    found = sum_of_parts(parts.to(device) if device != "cpu" else parts, dtype)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.cpu().double(), parts.double().sum(0), rtol=2 * eps, atol=64 * 2**-24 * rows**0.5)
    assert found.dtype == dtype
