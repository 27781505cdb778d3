"""Floating-point precision of a run on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, get_args

import torch

Precision = Literal["float32", "tf32", "bfloat16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context for the forward calls of a model: autocast to bfloat16 on a GPU if the precision says so."""
    reduced = precision == "bfloat16" and device.type == "cuda"
    return torch.autocast("cuda", torch.bfloat16) if reduced else nullcontext()


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set torch's precision of float32 matrix products: TensorFloat-32 unless the precision is ``"float32"``."""
    try:
        usual = torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller set torch's newer switches, which exclude this one: they stay as they are
        yield
        return
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(usual)
