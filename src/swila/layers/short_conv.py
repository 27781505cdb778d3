"""Short causal convolution along time, one filter per channel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from swila.layers.context import CallContext, per_row
from swila.ops.fused.short_conv import short_conv


class ShortConvolution(nn.Module):
    """``y_t = Σ_i w_i x_{t-W+1+i}`` for each channel, followed by SiLU or no activation.

    Sequences start from zeros, or from the last ``W - 1`` inputs of the previous call. An input with a multiple of C
    channels is several streams through the same filters.

    Args:
        channels: Number of filters, C.
        width: Number of taps of each filter, W.
        bias: Whether to add a bias per channel.
        activation: ``"silu"`` or None.
    """

    def __init__(self, channels: int, width: int, bias: bool = False, activation: str | None = "silu") -> None:
        super().__init__()
        if not isinstance(width, int) or width < 2:
            raise ValueError(
                f"conv_size must be at least 2, got {width}; use_short_conv=False turns the convolution off"
            )
        if activation not in ("silu", None):
            raise ValueError(f"activation must be 'silu' or None, got {activation!r}")
        self.channels, self.width, self.activation = channels, width, activation
        self.weight = nn.Parameter(torch.empty(channels, width))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights uniformly, as torch initialises a convolution; biases are 0."""
        nn.init.uniform_(self.weight, -1 / math.sqrt(self.width), 1 / math.sqrt(self.width))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        return_state: bool = False,
        unit_dim: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Convolve ``x [B, T, C]`` (packed: ``[1, T, C]``); ``unit_dim`` channels at a time are scaled to unit length.

        Returns:
            ``y`` of the same shape, and the last inputs ``[N, W - 1, C]`` of every sequence if ``return_state``.
        """
        y = short_conv(x, self.weight, self.bias, state, cu_seqlens, self.activation == "silu", unit_dim)
        return y, self._last(x, state, cu_seqlens) if return_state else None

    def state_shape(self, streams: int = 1) -> tuple[int, int]:
        """Return the shape of the state for one row: the last inputs of every channel."""
        return self.width - 1, streams * self.channels

    def _last(self, x: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
        """Return the last ``W - 1`` inputs of every sequence, as far as they reach with those of the state."""
        B, T, C = x.shape
        reach = self.width - 1
        if cu_seqlens is None and reach <= T:
            return x[:, T - reach :].clone()  # a view would keep more
        rows = B if cu_seqlens is None else len(cu_seqlens) - 1
        before = x.new_zeros(rows, reach, C) if state is None else state.to(x.dtype)
        if cu_seqlens is None:
            return torch.cat([before[:, T:], x], 1)
        last, lengths = [], cu_seqlens.diff()
        for back in range(reach, 0, -1):  # the inputs `back` positions before the next token
            at = (cu_seqlens[1:] - back).clamp_min(0)
            carried = before.gather(1, (reach + lengths - back).clamp(0, reach - 1)[:, None, None].expand(-1, 1, C))
            last.append(torch.where((lengths >= back)[:, None, None], x[0, at].unsqueeze(1), carried))
        return torch.cat(last, 1)

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        return f"{self.channels}, width={self.width}, activation={self.activation}"


def convolve(
    modules: Sequence[ShortConvolution],
    inputs: Sequence[Tensor],
    state: Sequence[Tensor] | None,
    context: CallContext,
    unit_dims: Sequence[int | None] | None = None,
) -> tuple[list[Tensor], tuple[Tensor | None, ...] | None]:
    """Apply a convolution to each input; the state is the tuple of their states.

    Args:
        modules: The convolutions.
        inputs: Their inputs.
        state: Their states, or None.
        context: Context of the call.
        unit_dims: Channels of each result to normalise together; see :meth:`ShortConvolution.forward`.
    """
    nothing = [None] * len(modules)
    pairs = [
        module(x, last, context.cu_seqlens, context.return_state, dim)
        for module, x, last, dim in zip(modules, inputs, state or nothing, unit_dims or nothing, strict=True)
    ]
    if context.alive is not None and state is not None:
        for old, (_, new) in zip(state, pairs, strict=True):
            old.copy_(torch.where(per_row(context.alive, old), new, old))
    return [y for y, _ in pairs], tuple(last for _, last in pairs) if context.return_state else None
