"""A call of the operation as a backend sees it: tensors, options, results, and their description.

Shapes use B batch, T time, H heads, J mixtures, V output (value) dims, K key dims and
N sequences (B, or the number of packed ones).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from swila.ops.types import RoutingStats, SwitchingState

DecayKind = Literal["key", "value", "head"]


class Inputs(NamedTuple):
    """All tensor arguments, in the order of the registered operator."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    key_logits: Tensor
    query_logits: Tensor
    log_decay: Tensor | None = None
    key_gate: Tensor | None = None
    query_gate: Tensor | None = None
    W: Tensor | None = None
    r: Tensor | None = None
    rho: Tensor | None = None
    cu_seqlens: Tensor | None = None

    @classmethod
    def of(cls, tensors: Iterable[Tensor | None]) -> Inputs:
        """Inputs from tensors in the order of the fields."""
        return cls(*tensors)  # type: ignore[arg-type]

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of the state and of all recurrence arithmetic."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def num_sequences(self) -> int:
        """Number of states of the call: the batch size, or the number of packed sequences."""
        return self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1


PER_TOKEN = Inputs._fields[:9]
STATE = Inputs._fields[9:12]
DIFFERENTIABLE = PER_TOKEN + STATE


def needs_grad(x: Inputs) -> bool:
    """Whether autograd needs a backward of this call, which may not have been checked yet."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in x[:-1])


def kept_rows(x: Inputs, chunk: int) -> int:
    """Number of states at chunk starts to save, without those at the start of a sequence.

    Packed sequences may end inside a chunk; ``T // chunk`` is an upper bound for them.
    """
    B, T = x.q.shape[:2]
    return B * ((T - 1) // chunk) if x.cu_seqlens is None else T // chunk


def without_autocast(device: torch.device) -> AbstractContextManager:
    """A context in which autocast is off: the recurrence chooses its own precision."""
    if not torch.amp.autocast_mode.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


class Options(NamedTuple):
    """All arguments that are not tensors, in the order of the registered operator."""

    decay_order: str = "pre"
    normalize: bool = True
    return_state: bool = False
    routing_stats: bool = False


class Results(NamedTuple):
    """All results of a backend; those not requested are None."""

    output: Tensor
    W: Tensor | None = None
    r: Tensor | None = None
    rho: Tensor | None = None
    key_usage: Tensor | None = None
    key_entropy: Tensor | None = None
    query_usage: Tensor | None = None
    query_entropy: Tensor | None = None

    @property
    def final(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The final state as ``(W, r, rho)``."""
        return self.W, self.r, self.rho

    @property
    def routing(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """The statistics in the order of :class:`~swila.RoutingStats`."""
        return self.key_usage, self.key_entropy, self.query_usage, self.query_entropy

    @property
    def state(self) -> SwitchingState | None:
        """The final state as the public operation returns it."""
        return None if self.W is None else SwitchingState(self.W, self.r, self.rho)

    @property
    def stats(self) -> RoutingStats | None:
        """The statistics as the public operation returns them."""
        return None if self.key_usage is None else RoutingStats(*self.routing)  # type: ignore[arg-type]


def empty_results(x: Inputs, options: Options) -> Results:
    """Uninitialised results of the right shapes. The call alone determines which of them are present."""
    B, T, H, _ = x.q.shape
    J, V, K = *x.beta.shape[3:], x.q.shape[3]

    def new(*shape: int, wanted: bool) -> Tensor | None:
        return x.q.new_empty(shape, dtype=x.compute_dtype) if wanted else None

    state, stats, N = options.return_state, options.routing_stats, x.num_sequences
    return Results(
        output=x.v.new_empty(B, T, H, V),
        W=new(N, H, J, V, K, wanted=state),
        r=new(N, H, J, V, wanted=state and x.key_gate is not None),
        rho=new(N, H, J, V, wanted=state and x.query_gate is not None),
        key_usage=new(H, J, V, wanted=stats),
        key_entropy=new(H, V, wanted=stats),
        query_usage=new(H, J, V, wanted=stats),
        query_entropy=new(H, V, wanted=stats),
    )


@dataclass(frozen=True)
class Problem:
    """Description of a call, from which a backend decides whether it can serve it; holds no tensors."""

    device: str
    dtype: torch.dtype
    B: int
    T: int
    H: int
    K: int
    V: int
    J: int
    decay: DecayKind | None
    decay_order: str
    key_temporal: bool
    query_temporal: bool
    normalize: bool
    packed: bool
    routing_stats: bool
    needs_grad: bool

    @classmethod
    def of(cls, x: Inputs, options: Options, needs_grad: bool) -> Problem:
        """The description of a checked call."""
        B, T, H, K = x.q.shape
        J, V = x.beta.shape[3:]
        return cls(
            x.q.device.type, x.q.dtype, B, T, H, K, V, J,
            None if x.log_decay is None else decay_kind(x.log_decay),
            options.decay_order, x.key_gate is not None, x.query_gate is not None,
            options.normalize, x.cu_seqlens is not None, options.routing_stats, needs_grad,
        )  # fmt: skip


def decay_kind(log_decay: Tensor) -> DecayKind:
    """Granularity of ``log_decay [..., J, V or 1, K or 1]``."""
    V, K = log_decay.shape[-2:]
    if V != 1:
        return "value"
    return "key" if K != 1 else "head"
