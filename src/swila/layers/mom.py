"""Mixture of memories: several delta-rule memories, of which a router selects a few for each token."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swila.layers.cache import Shape
from swila.layers.checks import check_counts, check_flags, check_weights
from swila.layers.context import CallContext
from swila.layers.decay import DecayGate
from swila.layers.delta_rule import delta_rule
from swila.layers.options import RecurrentOptions, forwards
from swila.layers.recurrent import RecurrentMixer


class MixtureOfMemories(RecurrentMixer):
    r"""M memories with keys and values of their own; each token writes to and reads from ``top_k`` of them.

    With ``s = softmax(W_r x)``, the selected set ``S`` of the ``top_k`` largest, and ``w_m = s_m / Σ_{S} s`` on it::

        W_m <- delta rule of (k_m, v_m, β_m)   for m in S; the others do not change
        o    = Σ_{m in S} w_m W_m q            (+ W_shared q, a memory that every token uses)

    From *MoM: Linear Sequence Modeling with Mixture-of-Memories* (Du et al., 2026). Memories are heads of one call
    of the operation: a token that is not routed to a memory has β = 0 and no decay there, which leaves the memory as it
    is. Tokens interact only through the states, so the layer is causal and keeps samples apart, also in training.

    Differences from flash-linear-attention's code: the short convolutions run over the sequence before routing. There,
    training runs them over the packed tokens of all memories and samples, which mixes in later tokens and other
    samples. With a decay, its bias is per memory.

    Args:
        hidden_size: Width of the input and output.
        num_heads: Number of heads of each memory, H.
        num_memories: Number of routed memories, M.
        top_k: Number of routed memories that a token uses.
        shared_memory: Whether to add a memory that every token uses, with weight 1.
        decay: Whether memories decay, as in Gated DeltaNet (GDN-MoM); otherwise DN-MoM.
        use_output_gate: Whether to multiply the normalised output by ``silu(W x)``.
        balance_scale: Weight of the load-balancing loss in training.
        shared: See :class:`~swila.layers.options.RecurrentOptions`; ``help`` lists them under ``__init__``.
    """

    steps_in_place = True

    @forwards(RecurrentOptions, to=RecurrentMixer)
    def __init__(
        self,
        hidden_size: int,
        num_heads: int = 8,
        num_memories: int = 4,
        top_k: int = 2,
        shared_memory: bool = False,
        decay: bool = False,
        use_output_gate: bool = False,
        balance_scale: float = 0.01,
        **shared: Unpack[RecurrentOptions],
    ) -> None:
        check_counts(num_memories=num_memories, top_k=top_k)
        check_flags(shared_memory=shared_memory, decay=decay, use_output_gate=use_output_gate)
        check_weights(balance_scale=balance_scale)
        if not 1 <= top_k <= num_memories:
            raise ValueError(f"top_k must be between 1 and num_memories = {num_memories}, got {top_k}")
        super().__init__(
            hidden_size,
            num_heads,
            output_gate="linear" if use_output_gate else None,
            streams=num_memories + shared_memory,
            **shared,
        )
        self.num_memories, self.top_k, self.shared_memory = num_memories, top_k, shared_memory
        self.balance_scale = balance_scale
        self.router = nn.Linear(hidden_size, num_memories, bias=False)
        self.b_proj = nn.Linear(hidden_size, self.streams * num_heads, bias=False)
        self.decay = DecayGate(hidden_size, num_heads, self.streams, slowest=0.0) if decay else None

    def readers(self) -> dict[str, nn.Module]:
        """See :meth:`QKVMixer.readers`."""
        decay = {} if self.decay is None else {"decay": self.decay.proj}
        return {**super().readers(), "router": self.router, "b_proj": self.b_proj, **decay}

    def recur(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, context: CallContext) -> tuple[Tensor, Any]:
        """See :meth:`RecurrentMixer.recur`."""
        S, H = self.streams, self.num_heads
        project = self.projections(x, context)
        weights, used = self._route(x, project("router"))
        beta = project("b_proj").sigmoid().unflatten(-1, (S, H)) * used.unsqueeze(-1).to(x.dtype)
        log_decay = None
        if self.decay is not None:
            log_decay = (self.decay(x, project("decay")).mT * used.unsqueeze(-1)).flatten(-2)
        queries = q.unsqueeze(2).expand(-1, -1, S, -1, -1).flatten(2, 3)
        o, state = delta_rule(queries, k, v, beta.flatten(-2), log_decay, state, context, self.backend)
        return torch.einsum("btshv,bts->bthv", o.unflatten(2, (S, H)), weights.to(o.dtype)), state

    def memory_form(self) -> tuple[Shape, ...]:
        """See :meth:`RecurrentMixer.memory_form`; the memories are heads."""
        return (self.streams * self.num_heads, 1, self.head_v_dim, self.head_k_dim), None, None

    def _route(self, x: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the read weights and the 0/1 use of every memory, both ``[B, T, S]``; the shared memory is last."""
        logits = self.router(x) if logits is None else logits
        probabilities = logits.softmax(-1, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32)
        chosen, index = probabilities.topk(self.top_k, -1)
        used = torch.zeros_like(probabilities).scatter(-1, index, 1.0)
        weights = probabilities * used / chosen.sum(-1, keepdim=True)
        if self.training and self.balance_scale:
            self.last_call.keep_loss(self.balance_scale * switch_loss(probabilities, used))
        if self.shared_memory:
            weights, used = F.pad(weights, (0, 1), value=1.0), F.pad(used, (0, 1), value=1.0)
        return weights, used


def switch_loss(probabilities: Tensor, used: Tensor) -> Tensor:
    """Return ``M Σ_m f_m P_m``, with the fraction ``f_m`` of tokens that use memory m and its mean probability ``P_m``.

    The value is ``top_k`` when memories are used evenly.

    Args:
        probabilities: Probabilities of the router, ``[B, T, M]``.
        used: 1 where a token uses a memory, else 0, ``[B, T, M]``.
    """
    M = probabilities.shape[-1]
    return M * (used.mean((0, 1)) * probabilities.mean((0, 1))).sum()
