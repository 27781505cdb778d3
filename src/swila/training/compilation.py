"""Limits of ``torch.compile`` for training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def compiling() -> Iterator[None]:
    """Raise torch's limits of recompilation: a model has many layers, each with shapes that never change."""
    with torch._dynamo.config.patch(recompile_limit=1024, accumulated_recompile_limit=4096):
        yield
