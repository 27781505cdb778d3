"""Base class of layers with a matrix state: head dimensions, output norm, output gate and output projection."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from torch import Tensor, nn

from swila.layers.cache import LayerState, Shape
from swila.layers.checks import check_counts, check_numbers
from swila.layers.context import CallContext
from swila.layers.decay import DecayGate
from swila.layers.norms import rms_norm
from swila.layers.options import SharedOptions, forwards
from swila.layers.projection import make_projection
from swila.layers.qkv import Projected, QKVMixer
from swila.ops.backends import backend_names


def head_dims(
    hidden_size: int,
    num_heads: int,
    head_dim: int | None = None,
    expand_k: float | None = None,
    expand_v: float | None = None,
    default_expand: float = 1.0,
) -> tuple[int, int]:
    """Return the key and value dimensions of a head.

    Args:
        hidden_size: Width of the layer's input.
        num_heads: Number of heads.
        head_dim: Both dimensions, or None.
        expand_k: Width of the keys of all heads together, relative to ``hidden_size``.
        expand_v: Width of the values of all heads together, relative to ``hidden_size``.
        default_expand: What ``expand_k`` and ``expand_v`` are where they are None.
    """
    check_counts(hidden_size=hidden_size, num_heads=num_heads)
    if head_dim is not None:
        if expand_k is not None or expand_v is not None:
            raise ValueError("head_dim must be None with expand_k or expand_v: both set the width of a head")
        check_counts(head_dim=head_dim)
        return head_dim, head_dim
    widths = []
    for name, given in (("expand_k", expand_k), ("expand_v", expand_v)):
        expand = default_expand if given is None else given
        check_numbers(**{name: expand})
        width = hidden_size * expand / num_heads
        if width < 1 or width != int(width):
            raise ValueError(
                f"{name} must make hidden_size * {name} a multiple of num_heads, "
                f"got {hidden_size} * {expand} for {num_heads} heads"
            )
        widths.append(int(width))
    return widths[0], widths[1]


class RecurrentMixer(QKVMixer):
    """A layer with a matrix state per head.

    ``q, k, v`` are linear in the input, followed by a short convolution and SiLU; q and k are normalised to unit
    length. The output of the recurrence passes an RMSNorm per head, an optional gate, and a projection. A subclass
    implements :meth:`recur`.

    Args:
        hidden_size: Width of the input and output.
        num_heads: Number of heads, H.
        head_k_dim: Key dimensions of a head, K; None to use ``head_dim`` or ``expand_k``.
        head_v_dim: Value dimensions of a head, V; None to use ``head_dim`` or ``expand_v``.
        output_gate: Projection of the gate that multiplies the normalised output: ``"linear"`` or
            ``"low-rank:RANK"``; None for no gate.
        output_gate_activation: ``"silu"`` or ``"sigmoid"``.
        output_gate_bias: Whether the projection of the gate has a bias.
        streams: Number of sets of keys and values (memories). Each has a projection of its own; all pass the same
            convolutions.
        head_dim: See :class:`~swila.layers.options.RecurrentOptions`.
        expand_k: See :class:`~swila.layers.options.RecurrentOptions`.
        expand_v: See :class:`~swila.layers.options.RecurrentOptions`.
        use_short_conv: See :class:`~swila.layers.options.RecurrentOptions`.
        backend: See :class:`~swila.layers.options.RecurrentOptions`.
        shared: See :class:`~swila.layers.options.SharedOptions`.

    Attributes:
        default_expand: Default of ``expand_k`` and ``expand_v``.
        steps_in_place: Whether :meth:`recur` updates the given state in place when the context has ``alive``.
    """

    default_expand: ClassVar[float] = 1.0
    steps_in_place: ClassVar[bool] = False

    @forwards(SharedOptions, to=QKVMixer)
    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_k_dim: int | None = None,
        head_v_dim: int | None = None,
        *,
        output_gate: str | None = None,
        output_gate_activation: str = "silu",
        output_gate_bias: bool = False,
        streams: int = 1,
        head_dim: int | None = None,
        expand_k: float | None = None,
        expand_v: float | None = None,
        use_short_conv: bool = True,
        backend: str = "auto",
        **shared: Unpack[SharedOptions],
    ) -> None:
        if head_k_dim is None or head_v_dim is None:
            head_k_dim, head_v_dim = head_dims(
                hidden_size, num_heads, head_dim, expand_k, expand_v, self.default_expand
            )
        if output_gate_activation not in ("silu", "sigmoid"):
            raise ValueError(f"output_gate_activation must be 'silu' or 'sigmoid', got {output_gate_activation!r}")
        if backend not in ("auto", "fla", *backend_names()):
            raise ValueError(f"backend must be 'auto', 'fla' or one of {', '.join(backend_names())}, got {backend!r}")
        key_dim, value_dim = num_heads * head_k_dim, num_heads * head_v_dim
        super().__init__(
            hidden_size,
            key_dim,
            key_dim,
            value_dim,
            activation="silu",
            streams=streams,
            use_short_conv=use_short_conv,
            **shared,
        )
        self.num_heads, self.head_k_dim, self.head_v_dim = num_heads, head_k_dim, head_v_dim
        self.backend = backend
        self.g_proj: nn.Module | None = None
        if output_gate is not None:
            self.g_proj = make_projection("output_gate", output_gate, hidden_size, value_dim, output_gate_bias)
        self.output_gate_activation = output_gate_activation
        self.o_norm = nn.RMSNorm(head_v_dim, eps=self.norm_eps)
        self.o_proj = nn.Linear(value_dim, hidden_size, bias=False)

    def mix(self, x: Tensor, past: LayerState | None, context: CallContext) -> tuple[Tensor, LayerState | None]:
        """See :meth:`SequenceMixer.mix`."""
        past = past or {}
        x, q, k, v, conv_state, projections = self._project(x, past.get("conv_state"), context)
        context = context._replace(projections=projections)
        o, state = self.recur(x, q, k, v, past.get("recurrent_state"), context)
        y = self.o_proj(self._gated_norm(o, x, context).flatten(-2))
        return y, {"recurrent_state": state, "conv_state": conv_state} if context.return_state else None

    def step(self, x: Tensor, state: LayerState, alive: Tensor) -> Tensor:
        """See :meth:`SequenceMixer.step`; updates the state in place if ``steps_in_place``."""
        if not self.steps_in_place:
            return super().step(x, state, alive)
        return self.mix(x, state, CallContext(return_state=True, alive=alive))[0]

    def recur(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, context: CallContext) -> tuple[Tensor, Any]:
        """Run the recurrence, with S streams of keys and values.

        Args:
            x: Input of the layer ``[B, T, hidden_size]``, for routers and gates.
            q: Queries ``[B, T, H, K]``.
            k: Keys ``[B, T, S*H, K]``.
            v: Values ``[B, T, S*H, V]``.
            state: State returned by an earlier call, or None.
            context: Context of the call.

        Returns:
            The output ``[B, T, H, V]``, and the new state or None.
        """
        raise NotImplementedError

    def readers(self) -> dict[str, nn.Module]:
        """See :meth:`QKVMixer.readers`."""
        gate = {} if self.g_proj is None else {"g_proj": self.g_proj}
        return {**super().readers(), **gate}

    def _project(self, x: Tensor, conv_state: Any, context: CallContext) -> Projected:
        """As :meth:`project_qkv`, with q, k and v split into heads and q and k of unit length."""
        found = self.project_qkv(x, conv_state, context, unit_dim=self.head_k_dim)
        q, k = (t.unflatten(-1, (-1, self.head_k_dim)) for t in (found.q, found.k))
        return found._replace(q=q, k=k, v=found.v.unflatten(-1, (-1, self.head_v_dim)))

    def _gated_norm(self, o: Tensor, x: Tensor, context: CallContext) -> Tensor:
        gate = None
        if self.g_proj is not None:
            gate = self.projections(x, context)("g_proj").unflatten(-1, (-1, self.head_v_dim))
        return rms_norm(self.o_norm, o, gate, self.output_gate_activation)

    def memory_form(self) -> tuple[Shape, ...] | None:
        """Return the shapes of :meth:`recur`'s state for one row; None (the default) disables the check of caches."""
        return None

    def state_form(self) -> dict[str, tuple[Shape, ...] | None] | None:
        """See :meth:`SequenceMixer.state_form`."""
        memory = self.memory_form()
        if memory is None:
            return None
        return {"recurrent_state": memory, "attn_state": None, "conv_state": self.conv_form()}

    def state_size(self, length: int = 1) -> int:
        """Return ``H K V`` for each stream; see :meth:`SequenceMixer.state_size`."""
        return self.streams * self.num_heads * self.head_k_dim * self.head_v_dim

    def mixing_flops(self, length: int) -> float:
        """Return ``6 K V`` per head, mixture and stream: ``W k``, ``W + c kᵀ`` and ``W q``; ``7 K V`` with a decay.

        All streams are counted: a token that is not routed to a memory is still multiplied with its state. The count
        is that of the token loop; kernels that work on chunks do more.
        """
        decays = any(isinstance(part, DecayGate) for part in self.children())
        return (7.0 if decays else 6.0) * self.state_size()
