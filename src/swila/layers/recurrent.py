"""What the layers with a matrix state share: projections, convolutions, the norm and the gate of the output."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from swila.layers.cache import LayerState, Shape
from swila.layers.context import CallContext
from swila.layers.mixer import SequenceMixer
from swila.layers.norms import l2_norm, rms_norm
from swila.layers.options import check_counts, check_flags, check_numbers, check_weights
from swila.layers.projection import make_projection
from swila.layers.short_conv import ShortConvolution, carried_shapes, convolve, convolves
from swila.ops.backends import backend_names


def head_dims(
    hidden_size: int, num_heads: int, head_dim: int | None, expand_k: float | None, expand_v: float | None
) -> tuple[int, int]:
    """Key and value dims of a head, from ``head_dim`` or from the widths of all heads relative to ``hidden_size``."""
    check_counts(hidden_size=hidden_size, num_heads=num_heads)
    if head_dim is not None:
        if expand_k is not None or expand_v is not None:
            raise ValueError("head_dim must be None with expand_k or expand_v: both set the width of a head")
        check_counts(head_dim=head_dim)
        return head_dim, head_dim
    widths = []
    for name, expand in (("expand_k", expand_k), ("expand_v", expand_v)):
        if expand is not None:
            check_numbers(**{name: expand})
        width = hidden_size * (1.0 if expand is None else expand) / num_heads
        if width < 1 or width != int(width):
            raise ValueError(
                f"{name} must make hidden_size * {name} a multiple of num_heads, "
                f"got {hidden_size} * {expand} for {num_heads} heads"
            )
        widths.append(int(width))
    return widths[0], widths[1]


class RecurrentMixer(SequenceMixer):
    """A layer with a matrix state per head.

    ``q, k, v`` are linear in the input, then pass a short convolution and SiLU; q and k are brought to unit length. The
    output of the recurrence gets an RMSNorm per head, optionally a gate, and a projection. A layer writes
    :meth:`recur`.

    Args:
        hidden_size: width of the input and the output.
        num_heads: heads H.
        head_k_dim: key dims K of a head.
        head_v_dim: value dims V of a head.
        use_short_conv: whether q, k and v pass a short convolution.
        conv_size: its width, 2 or 4 as a rule.
        conv_bias: whether it has a bias.
        conv_on: ``"qkv"``, or ``"input"`` for one convolution (without activation) of all the layer sees, routers and
            gates as well.
        output_gate: None, or the kind of projection for a gate on the normalised output (``"linear"``,
            ``"low-rank:RANK"``).
        output_gate_activation: ``"silu"`` or ``"sigmoid"``.
        output_gate_bias: whether that projection has a bias.
        norm_eps: of the output's RMSNorm.
        layer_idx: the layer's place in the model, and in a cache that layers share.
        backend: of the operation; see :func:`swila.switching_delta_rule`.
        streams: sets of keys and values (memories), each with its own projection, through the same convolutions.

    Attributes:
        steps_in_place: whether :meth:`recur` writes over the state it is given where the context has ``alive``.
    """

    steps_in_place: ClassVar[bool] = False

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        *,
        use_short_conv: bool,
        conv_size: int,
        conv_bias: bool,
        conv_on: str = "qkv",
        output_gate: str | None,
        output_gate_activation: str = "silu",
        output_gate_bias: bool = False,
        norm_eps: float,
        layer_idx: int | None,
        backend: str,
        streams: int = 1,
    ) -> None:
        super().__init__(hidden_size, layer_idx)
        check_flags(use_short_conv=use_short_conv, conv_bias=conv_bias)
        check_weights(norm_eps=norm_eps)
        if output_gate_activation not in ("silu", "sigmoid"):
            raise ValueError(f"output_gate_activation must be 'silu' or 'sigmoid', got {output_gate_activation!r}")
        if backend not in ("auto", "fla", *backend_names()):
            raise ValueError(f"backend must be 'auto', 'fla' or one of {', '.join(backend_names())}, got {backend!r}")
        self.num_heads, self.head_k_dim, self.head_v_dim = num_heads, head_k_dim, head_v_dim
        self.backend, self.streams = backend, streams
        key_dim, value_dim = num_heads * head_k_dim, num_heads * head_v_dim
        self.q_proj = nn.Linear(hidden_size, key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, streams * key_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, streams * value_dim, bias=False)
        self.use_short_conv = use_short_conv
        self.convolves = convolves(use_short_conv, conv_on)
        if self.convolves == "input":
            self.input_conv1d = ShortConvolution(hidden_size, conv_size, conv_bias, activation=None)
        elif self.convolves == "qkv":
            self.q_conv1d = ShortConvolution(key_dim, conv_size, conv_bias)
            self.k_conv1d = ShortConvolution(key_dim, conv_size, conv_bias)
            self.v_conv1d = ShortConvolution(value_dim, conv_size, conv_bias)
        self.g_proj: nn.Module | None = None
        if output_gate is not None:
            self.g_proj = make_projection("output_gate", output_gate, hidden_size, value_dim, output_gate_bias)
        self.output_gate_activation = output_gate_activation
        self.o_norm = nn.RMSNorm(head_v_dim, eps=norm_eps)
        self.o_proj = nn.Linear(value_dim, hidden_size, bias=False)

    def mix(self, x: Tensor, past: LayerState | None, context: CallContext) -> tuple[Tensor, LayerState | None]:
        """See :meth:`SequenceMixer.mix`."""
        past = past or {}
        x, q, k, v, conv_state = self._project(x, past.get("conv_state"), context)
        o, state = self.recur(x, q, k, v, past.get("recurrent_state"), context)
        y = self.o_proj(self._gated_norm(o, x).flatten(-2))
        return y, {"recurrent_state": state, "conv_state": conv_state} if context.return_state else None

    def step(self, x: Tensor, state: LayerState, alive: Tensor) -> Tensor:
        """See :meth:`SequenceMixer.step`; no second state in memory where :meth:`recur` writes over the old one."""
        if not self.steps_in_place:
            return super().step(x, state, alive)
        return self.mix(x, state, CallContext(return_state=True, alive=alive))[0]

    def recur(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Any, context: CallContext) -> tuple[Tensor, Any]:
        """The recurrence: from ``q [B,T,H,K]``, ``k [B,T,S*H,K]``, ``v [B,T,S*H,V]`` to ``o [B,T,H,V]`` and a state."""
        raise NotImplementedError

    def _project(self, x: Tensor, conv_state: Any, context: CallContext) -> tuple[Tensor, Tensor, Tensor, Tensor, Any]:
        """What the layer sees, its q, k and v, and what the convolutions carry on."""
        if self.convolves == "input":
            (x,), conv_state = convolve((self.input_conv1d,), (x,), conv_state, context)
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.convolves == "qkv":
            modules = self.q_conv1d, self.k_conv1d, self.v_conv1d
            (q, k, v), conv_state = convolve(modules, (q, k, v), conv_state, context)
        else:
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        v = v.unflatten(-1, (-1, self.head_v_dim))
        q, k = (l2_norm(t.unflatten(-1, (-1, self.head_k_dim))).to(v.dtype) for t in (q, k))
        return x, q, k, v, conv_state

    def _gated_norm(self, o: Tensor, x: Tensor) -> Tensor:
        o = rms_norm(self.o_norm, o)
        if self.g_proj is None:
            return o
        gate = self.g_proj(x).unflatten(-1, (-1, self.head_v_dim))
        return o * (F.silu(gate) if self.output_gate_activation == "silu" else gate.sigmoid())

    def memory_form(self) -> tuple[Shape, ...] | None:
        """Shapes of the state that :meth:`recur` returns, for one row; None (the default) leaves states unchecked."""
        return None

    def state_form(self) -> dict[str, tuple[Shape, ...] | None] | None:
        """See :meth:`SequenceMixer.state_form`."""
        memory = self.memory_form()
        if memory is None:
            return None
        return {"recurrent_state": memory, "attn_state": None, "conv_state": carried_shapes(self, self.streams)}

    def state_size(self, length: int = 1) -> int:
        """``H K V`` for each stream."""
        return self.streams * self.num_heads * self.head_k_dim * self.head_v_dim
