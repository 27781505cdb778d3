"""Memory of the device: what to free after a case, and how running out of it shows."""

from __future__ import annotations

import gc

import torch

_SIGNS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that the device has no memory left.

    Compilers and libraries wrap :class:`torch.OutOfMemoryError` in errors of their own.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__ or error.__context__
    return False


def in_short(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def free(device: str) -> None:
    """Free the memory of models that are gone, and the graphs compiled for them."""
    torch._dynamo.reset()
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def synchronize(device: str) -> None:
    """Wait until the device has done all its work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def forget_peak(device: str) -> None:
    """Start to measure the peak memory anew."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: str) -> int | None:
    """Return the most bytes that were allocated on a GPU since :func:`forget_peak`; None for a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else None
