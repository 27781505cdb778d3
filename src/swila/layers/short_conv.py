"""Short causal convolution along time, one filter per channel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swila.layers.context import CallContext, per_row
from swila.layers.packing import sequences


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
        self, x: Tensor, state: Tensor | None = None, cu_seqlens: Tensor | None = None, return_state: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Convolve ``x [B, T, C]`` (packed: ``[1, T, C]``).

        Returns:
            ``y`` of the same shape, and the last inputs ``[N, W - 1, C]`` of every sequence if ``return_state``.
        """
        streams = x.shape[-1] // self.channels
        weight = self.weight.repeat(streams, 1).to(x.dtype)
        taps, last = (
            self._dense(x, state, return_state)
            if cu_seqlens is None
            else self._packed(x, state, cu_seqlens, return_state)
        )
        y = taps[-1] * weight[:, -1]
        for i in range(self.width - 1):
            y = torch.addcmul(y, taps[i], weight[:, i])
        if self.bias is not None:
            y = y + self.bias.repeat(streams).to(x.dtype)
        return F.silu(y) if self.activation else y, last

    def state_shape(self, streams: int = 1) -> tuple[int, int]:
        """Return the shape of the state for one row: the last inputs of every channel."""
        return self.width - 1, streams * self.channels

    def _dense(self, x: Tensor, state: Tensor | None, return_state: bool) -> tuple[list[Tensor], Tensor | None]:
        B, T, C = x.shape
        before = x.new_zeros(B, self.width - 1, C) if state is None else state.to(x.dtype)
        extended = torch.cat([before, x], 1)
        last = extended[:, T:].clone() if return_state else None  # a view would keep the whole sequence
        return [extended[:, i : i + T] for i in range(self.width)], last

    def _packed(
        self, x: Tensor, state: Tensor | None, cu_seqlens: Tensor, return_state: bool
    ) -> tuple[list[Tensor], Tensor | None]:
        T, C = x.shape[1:]
        row, position, lengths = sequences(cu_seqlens, T)
        before = x.new_zeros(len(lengths), self.width - 1, C) if state is None else state.to(x.dtype)
        reach = self.width - 1
        taps = [x]
        for back in range(1, self.width):
            earlier = F.pad(x, (0, 0, back, 0))[:, :T]
            carried = before[row, (reach + position - back).clamp(0, reach - 1)]
            taps.insert(0, torch.where((position >= back)[:, None], earlier, carried))
        if not return_state:
            return taps, None
        last = [before]
        for back in range(reach, 0, -1):  # the inputs `back` positions before the next token
            at = (cu_seqlens[1:] - back).clamp_min(0)
            carried = before.gather(1, (reach + lengths - back).clamp(0, reach - 1)[:, None, None].expand(-1, 1, C))
            last.append(torch.where((lengths >= back)[:, None, None], x[0, at].unsqueeze(1), carried))
        return taps, torch.cat(last[1:], 1)

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        return f"{self.channels}, width={self.width}, activation={self.activation}"


def convolve(
    modules: Sequence[ShortConvolution],
    inputs: Sequence[Tensor],
    state: Sequence[Tensor] | None,
    context: CallContext,
) -> tuple[list[Tensor], tuple[Tensor | None, ...] | None]:
    """Apply a convolution to each input; the state is the tuple of their states."""
    before = [None] * len(modules) if state is None else state
    pairs = [
        module(x, last, context.cu_seqlens, context.return_state)
        for module, x, last in zip(modules, inputs, before, strict=True)
    ]
    if context.alive is not None and state is not None:
        for old, (_, new) in zip(state, pairs, strict=True):
            old.copy_(torch.where(per_row(context.alive, old), new, old))
    return [y for y, _ in pairs], tuple(last for _, last in pairs) if context.return_state else None
