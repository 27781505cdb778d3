"""Sizes of a GPU by which kernels are planned."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def shared_memory(device: int | torch.device) -> int:
    """Return the most bytes of shared memory that a block may ask for."""
    properties: Any = torch.cuda.get_device_properties(device)  # torch's type lacks this one
    return int(properties.shared_memory_per_block_optin)


@cache
def processors(device: int | torch.device) -> int:
    """Return the number of multiprocessors."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
