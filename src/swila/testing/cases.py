"""Random calls of the operation, for every variant and any shape, dtype and device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from swila.ops import SwitchingState
from swila.ops.call import PER_TOKEN, DecayKind, Inputs, Options, Problem


@dataclass(frozen=True)
class Shape:
    """Sizes of a call: batch, time, heads, key dimensions, output dimensions, mixtures."""

    B: int = 2
    T: int = 67
    H: int = 2
    K: int = 16
    V: int = 16
    J: int = 4

    def __str__(self) -> str:
        return f"B{self.B} T{self.T} H{self.H} K{self.K} V{self.V} J{self.J}"


SMALL = Shape()


@dataclass(frozen=True)
class Variant:
    """A variant of the recurrence."""

    decay: DecayKind | None = None
    decay_order: str = "pre"
    key_temporal: bool = False
    query_temporal: bool = False
    normalize: bool = True


VARIANTS: dict[str, Variant] = {
    "plain": Variant(),
    "temporal": Variant(key_temporal=True, query_temporal=True),
    "gated": Variant("key"),
    "gated-value": Variant("value"),
    "gated-head": Variant("head"),
    "gated-temporal": Variant("key", key_temporal=True, query_temporal=True),
    "post-decay": Variant("key", "post"),
    "post-decay-value-temporal": Variant("value", "post", key_temporal=True, query_temporal=True),
    "unnormalized": Variant(normalize=False),
    "unnormalized-gated-temporal": Variant("head", key_temporal=True, query_temporal=True, normalize=False),
}


def problem_of(call: dict[str, Any]) -> Problem:
    """Return the :class:`Problem` of a call that requests state, statistics and gradients."""
    state = call.get("initial_state") or (None, None, None)
    x = Inputs.of([*(call.get(name) for name in PER_TOKEN), *state, call.get("cu_seqlens")])
    options = Options(call["decay_order"], call["normalize"], return_state=True, routing_stats=True)
    return Problem.of(x, options, needs_grad=True)


def make_call(
    variant: Variant = VARIANTS["plain"],
    shape: Shape = SMALL,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    seed: int = 0,
    initial_state: bool = True,
    lengths: list[int] | None = None,
    requires_grad: bool = True,
) -> dict[str, Any]:
    """Return random keyword arguments of :func:`swila.switching_delta_rule`, distributed as in a trained layer.

    Keys and queries have unit length, values a standard deviation of 2 (so that responsibilities differ); decays are
    mostly between 0.3 and 1.

    Args:
        variant: Variant of the recurrence.
        shape: Sizes.
        dtype: Dtype of the inputs; the state is float32, or float64 for float64.
        device: Device of the tensors.
        seed: Seed of the random numbers.
        initial_state: Whether to pass an initial state.
        lengths: Lengths of packed sequences, instead of ``shape.B`` and ``shape.T``.
        requires_grad: Whether the tensors require gradients.
    """
    B, T, N = shape.B, shape.T, shape.B
    if lengths is not None:
        B, T, N = 1, sum(lengths), len(lengths)
    H, K, V, J = shape.H, shape.K, shape.V, shape.J
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")

    def ready(x: Tensor, to: torch.dtype) -> Tensor:
        return x.to(device, to).requires_grad_(requires_grad)

    call: dict[str, Any] = {
        "q": F.normalize(normal(B, T, H, K), dim=-1),
        "k": F.normalize(normal(B, T, H, K), dim=-1),
        "v": 2 * normal(B, T, H, V),
        "beta": normal(B, T, H, J, V).sigmoid(),
        "key_logits": normal(B, T, H, J, V),
        "query_logits": normal(B, T, H, J, V),
    }
    if variant.decay is not None:
        size = {"key": (1, K), "value": (V, 1), "head": (1, 1)}[variant.decay]
        call["log_decay"] = F.logsigmoid(normal(B, T, H, J, *size) + 2)
    if variant.key_temporal:
        call["key_gate"] = normal(B, T, H, V).sigmoid()
    if variant.query_temporal:
        call["query_gate"] = normal(B, T, H, V).sigmoid()
    call = {name: ready(x, dtype) for name, x in call.items()}
    if initial_state:
        full = torch.float64 if dtype == torch.float64 else torch.float32
        call["initial_state"] = SwitchingState(
            ready(0.5 * normal(N, H, J, V, K), full),
            ready(normal(N, H, J, V).softmax(2), full) if variant.key_temporal else None,
            ready(normal(N, H, J, V).softmax(2), full) if variant.query_temporal else None,
        )
    if lengths is not None:
        call["cu_seqlens"] = torch.tensor([0, *lengths]).cumsum(0).to(device)
    return call | {"decay_order": variant.decay_order, "normalize": variant.normalize}
