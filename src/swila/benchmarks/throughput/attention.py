"""The backend of torch's softmax attention that is fastest at a model's shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from swila.benchmarks.throughput.memory import out_of_memory
from swila.layers.attention import Attention

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
WARM_UP, REPEATS = 2, 5


def choose(model: Any, batch: int, length: int, backward: bool) -> dict[str, Any] | None:
    """Return the fastest backend for a model and the milliseconds of each that serves the shape.

    Args:
        model: Language model on its device; None is returned for one on a CPU, or without layers of softmax attention.
        batch: Number of sequences.
        length: Tokens of a sequence.
        backward: Whether to time the backward too.
    """
    mixers = [block.mixer for block in model.model.layers if type(getattr(block, "mixer", None)) is Attention]
    if not mixers or next(model.parameters()).device.type != "cuda":
        return None
    return fastest(inputs_of(mixers[0], batch, length, backward))


def inputs_of(mixer: Attention, batch: int, length: int, backward: bool) -> list[Tensor]:
    """Return random queries, keys and values ``[B, H, T, D]``, in memory as in the layer."""
    weight = next(mixer.parameters())
    return [
        torch.randn(batch, length, heads, mixer.head_dim, device=weight.device, dtype=weight.dtype)
        .transpose(1, 2)
        .requires_grad_(backward)
        for heads in (mixer.num_heads, mixer.num_kv_heads, mixer.num_kv_heads)
    ]


def fastest(inputs: list[Tensor]) -> dict[str, Any] | None:
    """Return the fastest backend for these inputs and the milliseconds of all that serve them; None if none does."""
    found = {name: ms for name in BACKENDS if (ms := milliseconds(name, inputs)) is not None}
    return {"backend": min(found, key=lambda name: found[name]), "ms": found} if found else None


def milliseconds(name: str, inputs: list[Tensor]) -> float | None:
    """Return the median time of causal attention by a backend, with the backward of inputs that require gradients.

    None if the backend does not serve the inputs.

    Args:
        name: One of :data:`BACKENDS`.
        inputs: Queries, keys and values ``[B, H, T, D]``.
    """
    q, k, v = inputs
    times = []
    with sdpa_kernel(BACKENDS[name]):
        for turn in range(WARM_UP + REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            try:
                o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])
            except RuntimeError as error:
                if out_of_memory(error):
                    raise
                return None
            if q.requires_grad:
                torch.autograd.grad(o, inputs, o.detach())
            end.record()
            torch.cuda.synchronize()
            if turn >= WARM_UP:
                times.append(begin.elapsed_time(end))
    return median(times)


@contextmanager
def preferring(choice: dict[str, Any] | None) -> Iterator[None]:
    """Within this context, softmax attention takes the chosen backend first, and others for calls it does not serve."""
    if choice is None:
        yield
        return
    first = BACKENDS[choice["backend"]]
    others = [each for each in (*BACKENDS.values(), SDPBackend.MATH) if each is not first]
    with sdpa_kernel([first, *others], set_priority=True):
        yield
