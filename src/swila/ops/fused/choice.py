"""Whether a fused piece runs its Triton kernels or its twin in plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_mode = "auto"


@contextmanager
def use_fused(when: bool | str = "auto") -> Iterator[None]:
    """Within this context, choose whether fused kernels are used.

    Args:
        when: ``"auto"`` (default: on NVIDIA GPUs with Triton), ``False`` (never: plain torch), or ``True`` (always,
            also on a CPU, where kernels run in Triton's interpreter if the environment has ``TRITON_INTERPRET=1``).
    """
    global _mode
    before, _mode = _mode, {True: "always", False: "never", "auto": "auto"}[when]
    try:
        yield
    finally:
        _mode = before


def wanted() -> bool:
    """Return whether fused kernels are used where they can be: outside of ``use_fused(False)``."""
    return _mode != "never"


@cache
def unusable() -> str | None:
    """Return why there are no fused kernels on this machine, or None."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return "they need an NVIDIA GPU"
    if torch.cuda.get_device_capability() < (8, 0):
        return "they need an NVIDIA GPU of compute capability 8.0 or newer"
    return None


def serves(*tensors: Tensor | None) -> bool:
    """Return whether the kernels serve a call with these tensors: on a GPU, float32 or half precision, no DTensors."""
    if _mode == "never":
        return False
    given = [t for t in tensors if t is not None]
    if any(hasattr(t, "placements") or (t.is_floating_point() and t.dtype not in DTYPES) for t in given):
        return False
    return _mode == "always" or (all(t.is_cuda for t in given) and _usable())


def _usable() -> bool:
    return unusable() is None


# What torch.compiler.assume_constant_result sets: the compiler must not trace the search for Triton.
_usable._dynamo_marked_constant = True  # type: ignore[attr-defined]
