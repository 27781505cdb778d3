"""Layers that compute queries, keys and values: projections and short convolutions."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from swila.layers.checks import check_counts, check_flags, check_weights
from swila.layers.context import CallContext
from swila.layers.joint import Projections
from swila.layers.mixer import SequenceMixer
from swila.layers.norms import l2_norm
from swila.layers.short_conv import ShortConvolution, convolve


class Projected(NamedTuple):
    """What a layer computes from its input before it mixes tokens.

    Attributes:
        x: The input, convolved with ``conv_on="input"``.
        q: Queries.
        k: Keys.
        v: Values.
        conv_state: State of the convolutions.
        projections: The other projections of ``x``, by the names of :meth:`QKVMixer.readers`.
    """

    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    conv_state: Any
    projections: Projections


class QKVMixer(SequenceMixer):
    """A layer with projections to q, k and v, each followed by an optional short convolution and an activation.

    Args:
        hidden_size: Width of the input and output.
        q_dim: Width of all queries.
        k_dim: Width of all keys.
        v_dim: Width of all values.
        activation: ``"silu"``, or None for no activation.
        streams: Number of sets of keys and values (memories). Each has a projection of its own; all pass the same
            convolutions.
        qkv_bias: Whether the projections have a bias.
        use_short_conv: Whether to use short convolutions.
        conv_size: See :class:`~swila.layers.options.SharedOptions`.
        conv_bias: See :class:`~swila.layers.options.SharedOptions`.
        conv_on: See :class:`~swila.layers.options.SharedOptions`.
        norm_eps: Epsilon for the norms that a subclass adds.
        layer_idx: See :class:`~swila.layers.options.SharedOptions`.

    Attributes:
        convolves: What is convolved: ``"qkv"``, ``"input"``, or None.
    """

    def __init__(
        self,
        hidden_size: int,
        q_dim: int,
        k_dim: int,
        v_dim: int,
        *,
        activation: str | None,
        streams: int = 1,
        qkv_bias: bool = False,
        use_short_conv: bool = True,
        conv_size: int = 4,
        conv_bias: bool = False,
        conv_on: str = "qkv",
        norm_eps: float = 1e-5,
        layer_idx: int | None = None,
    ) -> None:
        super().__init__(hidden_size, layer_idx)
        check_counts(conv_size=conv_size)
        check_flags(qkv_bias=qkv_bias, use_short_conv=use_short_conv, conv_bias=conv_bias)
        check_weights(norm_eps=norm_eps)
        if conv_on not in ("qkv", "input"):
            raise ValueError(f"conv_on must be 'qkv' or 'input', got {conv_on!r}")
        if conv_on != "qkv" and not use_short_conv:
            raise ValueError("conv_on has no effect without use_short_conv=True; leave it at its default")
        self.activation, self.streams, self.norm_eps = activation, streams, norm_eps
        self.use_short_conv, self.convolves = use_short_conv, conv_on if use_short_conv else None
        self.q_proj = nn.Linear(hidden_size, q_dim, bias=qkv_bias)
        self.k_proj = nn.Linear(hidden_size, streams * k_dim, bias=qkv_bias)
        self.v_proj = nn.Linear(hidden_size, streams * v_dim, bias=qkv_bias)
        if self.convolves == "input":
            self.input_conv1d = ShortConvolution(hidden_size, conv_size, conv_bias, activation=None)
        elif self.convolves == "qkv":
            self.q_conv1d = ShortConvolution(q_dim, conv_size, conv_bias, activation)
            self.k_conv1d = ShortConvolution(k_dim, conv_size, conv_bias, activation)
            self.v_conv1d = ShortConvolution(v_dim, conv_size, conv_bias, activation)

    def readers(self) -> dict[str, nn.Module]:
        """Return the modules that project the layer's input, by name; one product computes all that it can."""
        return {"q_proj": self.q_proj, "k_proj": self.k_proj, "v_proj": self.v_proj}

    def projections(self, x: Tensor, context: CallContext) -> Projections:
        """Return the projections of the input in this call."""
        return Projections(x, self.readers()) if context.projections is None else context.projections

    def project_qkv(self, x: Tensor, conv_state: Any, context: CallContext, unit_dim: int | None = None) -> Projected:
        """Return q, k and v, with what they come from and the other projections.

        Args:
            x: Input of the layer.
            conv_state: State of the convolutions, or None.
            context: Context of the call.
            unit_dim: Dimensions of the heads of q and k to normalise to unit length; None for no normalisation.
        """
        if self.convolves == "input":
            (x,), conv_state = convolve((self.input_conv1d,), (x,), conv_state, context)
        project = Projections(x, self.readers())
        q, k, v = project("q_proj"), project("k_proj"), project("v_proj")
        if self.convolves == "qkv":
            modules = self.q_conv1d, self.k_conv1d, self.v_conv1d
            heads = unit_dim, unit_dim, None
            (q, k, v), conv_state = convolve(modules, (q, k, v), conv_state, context, heads)
            return Projected(x, q, k, v, conv_state, project)
        if self.activation == "silu":
            q, k, v = F.silu(q), F.silu(k), F.silu(v)
        if unit_dim is not None:
            q, k = (l2_norm(t.unflatten(-1, (-1, unit_dim))).flatten(-2) for t in (q, k))
        return Projected(x, q, k, v, conv_state, project)

    def conv_form(self) -> tuple[tuple[int, int], ...] | None:
        """Return the shapes of the convolutions' state for one row, or None without convolutions."""
        if self.convolves == "input":
            return (self.input_conv1d.state_shape(),)
        if self.convolves == "qkv":
            kept = self.k_conv1d.state_shape(self.streams), self.v_conv1d.state_shape(self.streams)
            return self.q_conv1d.state_shape(), *kept
        return None

    def convolution_flops(self) -> float:
        """Return the floating-point operations per token of the convolutions: a product and a sum for each tap."""
        return sum(2.0 * (kept + 1) * channels for kept, channels in self.conv_form() or ())
