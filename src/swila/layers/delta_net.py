"""DeltaNet, Gated DeltaNet and KDA: the switching delta rule with one regressor per head (J = 1).

None of them scales q: the norm of the output would cancel a scale.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Unpack

from torch import Tensor, nn

from swila.layers.cache import Shape
from swila.layers.checks import check_flags
from swila.layers.context import CallContext
from swila.layers.decay import DecayGate
from swila.layers.delta_rule import delta_rule
from swila.layers.options import RecurrentOptions, forwards
from swila.layers.recurrent import RecurrentMixer, head_dims


class DeltaRuleMixer(RecurrentMixer):
    """One regressor per head with a scalar learning rate β.

    Attributes:
        decays: What has a decay of its own: each head, each key dimension, or None for no decay.
        gates_output: Whether the output has a gate by default.
    """

    decays: ClassVar[Literal["head", "key"] | None] = None
    gates_output: ClassVar[bool] = False
    steps_in_place = True

    @forwards(RecurrentOptions, to=RecurrentMixer)
    def __init__(
        self,
        hidden_size: int,
        num_heads: int = 8,
        use_output_gate: bool | None = None,
        **shared: Unpack[RecurrentOptions],
    ) -> None:
        """Make the layer.

        Args:
            hidden_size: Width of the input and output.
            num_heads: Number of heads, H.
            use_output_gate: Whether to multiply the normalised output by a gate, ``silu(W x)`` (KDA: a sigmoid of
                rank V). Default: as in the layer's paper; DeltaNet has no gate, the others have one.
            **shared: The options below.
        """
        head_dim, expand_k, expand_v = shared.get("head_dim"), shared.get("expand_k"), shared.get("expand_v")
        _, V = head_dims(hidden_size, num_heads, head_dim, expand_k, expand_v)
        if use_output_gate is not None:
            check_flags(use_output_gate=use_output_gate)
        by_key = self.decays == "key"
        gated = self.gates_output if use_output_gate is None else use_output_gate
        super().__init__(
            hidden_size,
            num_heads,
            output_gate=(f"low-rank:{V}" if by_key else "linear") if gated else None,
            output_gate_activation="sigmoid" if by_key else "silu",
            output_gate_bias=by_key,
            **shared,
        )
        self.b_proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.decay: DecayGate | None = None
        if by_key:
            self.decay = DecayGate(hidden_size, num_heads, self.head_k_dim, f"low-rank:{V}")
        elif self.decays == "head":
            self.decay = DecayGate(hidden_size, num_heads, slowest=0.0)

    def readers(self) -> dict[str, nn.Module]:
        """See :meth:`QKVMixer.readers`."""
        decay = {} if self.decay is None else {"decay": self.decay.proj}
        return {**super().readers(), "b_proj": self.b_proj, **decay}

    def recur(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, context: CallContext) -> tuple[Tensor, Any]:
        """See :meth:`RecurrentMixer.recur`."""
        project, log_decay = self.projections(x, context), None
        if self.decay is not None:
            log_decay = self.decay(x, project("decay"))
            log_decay = log_decay.squeeze(-1) if self.decays == "head" else log_decay
        beta = project("b_proj").sigmoid()
        return delta_rule(q, k, v, beta, log_decay, state, context, self.backend)

    def memory_form(self) -> tuple[Shape, ...]:
        """See :meth:`RecurrentMixer.memory_form`."""
        return (self.num_heads, 1, self.head_v_dim, self.head_k_dim), None, None


class DeltaNet(DeltaRuleMixer):
    """``W_t = W_{t-1} + β (v_t - W_{t-1} k_t) k_tᵀ``, read as ``W_t q_t``; β a scalar per head.

    From *Parallelizing Linear Transformers with the Delta Rule over Sequence Length* (Yang et al., 2024).
    """


class GatedDeltaNet(DeltaRuleMixer):
    """The delta rule on a state first decayed by a scalar ``α_t`` per head, ``W_{t-1} -> α_t W_{t-1}``.

    From *Gated Delta Networks: Improving Mamba2 with Delta Rule* (Yang et al., 2025).
    """

    decays = "head"
    gates_output = True


class KimiDeltaAttention(DeltaRuleMixer):
    """KDA: the delta rule on a state first decayed by an ``α_t`` per key dimension, ``W_{t-1} -> W_{t-1} Diag(α_t)``.

    The decay comes from a projection of rank V. From *Kimi Linear: An Expressive, Efficient Attention Architecture*
    (Kimi Team, 2025).
    """

    decays = "key"
    gates_output = True
