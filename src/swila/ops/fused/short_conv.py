"""Short causal convolution with SiLU and normalisation of heads: operators, gradients, and the twin in torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from swila.ops.fused.choice import serves
from swila.ops.fused.gradients import call_gradients, once_differentiable
from swila.ops.fused.layout import STRIDED
from swila.ops.fused.partial_sums import sum_of_parts
from swila.ops.fused.sequences import sequences

EPS = 1e-6
WIDTHS = range(2, 9)
_MOST_HEAD = 512  # channels of a head that one program normalises

_library = torch.library.Library("swila", "FRAGMENT")
_CALL = "Tensor x, Tensor weight, Tensor? bias, Tensor? state, Tensor? cu_seqlens, bool silu, int head_dim"
_library.define(f"short_conv({_CALL}) -> Tensor", tags=STRIDED)
_library.define(f"short_conv_backward(Tensor grad, {_CALL}) -> Tensor[]", tags=STRIDED)
_forward_op = torch.ops.swila.short_conv.default
_backward_op = torch.ops.swila.short_conv_backward.default


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    silu: bool = True,
    head_dim: int | None = None,
) -> Tensor:
    r"""Return a causal convolution along time with a filter per channel, then SiLU, then heads of unit length.

    For each channel, with taps that reach before the start of a sequence taken from ``state``, or zero::

        a_t = Σ_i w_i x_{t-W+1+i} + b        s_t = a_t sigmoid(a_t)        y_t = s_t / sqrt(Σ_head s_t² + 1e-6)

    Args:
        x: Input ``[B, T, S C]`` (packed: ``[1, T, S C]``), S streams through the same filters; rows may be far apart.
        weight: Filters ``[C, W]``.
        bias: Bias ``[C]``, or None.
        state: Inputs before the first token of each sequence, ``[N, W - 1, S C]``, or None for zeros.
        cu_seqlens: Bounds of packed sequences, int ``[N + 1]``, or None.
        silu: Whether to apply SiLU.
        head_dim: Consecutive channels to normalise together, or None for no normalisation.

    Kernels compute in float32 and round the result once; the twin rounds to the dtype of ``x`` after each of the steps.
    """
    head = 0 if head_dim is None else head_dim
    if serves(x, weight, bias, state) and weight.shape[1] in WIDTHS and head <= _MOST_HEAD:
        return _ShortConv.apply(x, weight, bias, state, cu_seqlens, silu, head)
    return short_conv_in_torch(x, weight, bias, state, cu_seqlens, silu, head_dim)


def short_conv_in_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    silu: bool = True,
    head_dim: int | None = None,
) -> Tensor:
    """Return :func:`short_conv` by operations of torch."""
    streams = x.shape[-1] // weight.shape[0]
    filters = weight.repeat(streams, 1).to(x.dtype)
    taps = _taps(x, weight.shape[1], state, cu_seqlens)
    y = taps[-1] * filters[:, -1]
    for i in range(weight.shape[1] - 1):
        y = torch.addcmul(y, taps[i], filters[:, i])
    if bias is not None:
        y = y + bias.repeat(streams).to(x.dtype)
    if silu:
        y = F.silu(y)
    return y if head_dim is None else l2_norm(y.unflatten(-1, (-1, head_dim))).flatten(-2)


def l2_norm(x: Tensor, eps: float = EPS) -> Tensor:
    """Return ``x / sqrt(|x|² + eps)`` over the last dimension, computed in float32 (float64 for float64)."""
    full = x if x.dtype == torch.float64 else x.float()
    return (full * torch.rsqrt(full.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def _taps(x: Tensor, width: int, state: Tensor | None, cu_seqlens: Tensor | None) -> list[Tensor]:
    """Return what each tap reads: ``x_{t-W+1+i}`` for i from 0 to W - 1."""
    (B, T, C), reach = x.shape, width - 1
    if cu_seqlens is None:
        before = x.new_zeros(B, reach, C) if state is None else state.to(x.dtype)
        extended = torch.cat([before, x], 1)
        return [extended[:, i : i + T] for i in range(width)]
    row, position, lengths = sequences(cu_seqlens, T)
    before = x.new_zeros(len(lengths), reach, C) if state is None else state.to(x.dtype)
    taps = [x]
    for back in range(1, width):
        earlier = F.pad(x, (0, 0, back, 0))[:, :T]
        carried = before[row, (reach + position - back).clamp(0, reach - 1)]
        taps.insert(0, torch.where((position >= back)[:, None], earlier, carried))
    return taps


class _ShortConv(torch.autograd.Function):
    """Keeps the input alone: the backward computes the convolution again."""

    @staticmethod
    def forward(ctx, x, weight, bias, state, cu_seqlens, silu, head_dim):
        ctx.save_for_backward(x, weight, bias, state, cu_seqlens)
        ctx.silu, ctx.head_dim = silu, head_dim
        return _forward_op(x, weight, bias, state, cu_seqlens, silu, head_dim)

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias, state, cu_seqlens = ctx.saved_tensors
        dx, dweight, *rest = call_gradients(
            _backward_op, grad, x, weight, bias, state, cu_seqlens, ctx.silu, ctx.head_dim
        )
        dbias = None if bias is None else rest[0]
        dstate = None if state is None else rest[-1]
        return dx, dweight, dbias, dstate, None, None, None


def _rows(x: Tensor) -> Tensor:
    """Return ``x [B, T, C]`` as ``[B T, C]`` with contiguous rows at one distance; a view if x has such rows."""
    flat = x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] == 1 else flat.contiguous()


class _Tiles(NamedTuple):
    """How the kernels divide their work.

    The gradients of the filters are sums over the programs, whose number therefore does not depend on the GPU.

    Attributes:
        elements: Number of elements of a tile of tokens and channels.
        programs: Number of programs: those that an H100 or H200 runs at once.
    """

    elements: int
    programs: int


_FORWARD, _ACTIVATION, _CONVOLUTION = _Tiles(2048, 792), _Tiles(1024, 396), _Tiles(2048, 792)


class _Launch:
    """Arguments that the kernels of one call share."""

    def __init__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, cu_seqlens: Tensor | None, head: int
    ) -> None:
        self.x, self.weight = _rows(x), weight.contiguous()
        self.bias = self.weight if bias is None else bias.contiguous()
        self.tokens, channels = self.x.shape
        bounds = None if cu_seqlens is None else cu_seqlens.contiguous()
        rows = x.shape[0] if bounds is None else len(bounds) - 1
        self.state = self.x if state is None else state.contiguous()
        width = head or min(64, 1 << (channels - 1).bit_length())
        self.width, self.groups = 1 << (width - 1).bit_length(), -(-channels // width)
        self.shared = {
            "bounds": self.x if bounds is None else bounds,
            "tokens": self.tokens,
            "length": x.shape[1],
            "last_row": rows - 1,
            "search_steps": 0 if bounds is None else (rows - 1).bit_length(),
            "channels": channels,
            "filters": weight.shape[0],
            "W": weight.shape[1],
            "PACKED": bounds is not None,
            "BC": self.width,
            "WIDTH": width,
        }

    def tiles(self, kind: _Tiles) -> tuple[tuple[int, int], dict[str, Any]]:
        """Return the grid of a kernel, by tiles of tokens and groups of channels, and the arguments that go with it."""
        tokens = max(2, min(64, kind.elements // self.width))
        programs = min(-(-self.tokens // tokens), max(1, kind.programs // self.groups))
        warps = 4 if tokens * self.width <= 2048 else 8
        return (programs, self.groups), self.shared | {"BT": tokens, "num_warps": warps}


@torch.library.impl(_library, "short_conv", "CompositeExplicitAutograd")
def _forward(x, weight, bias, state, cu_seqlens, silu, head_dim) -> Tensor:
    from swila.ops.fused.short_conv_kernels import forward_kernel

    call = _Launch(x, weight, bias, state, cu_seqlens, head_dim)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid, arguments = call.tiles(_FORWARD)
    with torch.cuda.device_of(x):
        forward_kernel[grid](
            call.x, call.x.stride(0), call.weight, call.bias, call.state, y, **arguments,
            EPS=EPS, SILU=silu, NORM=head_dim > 0, BIAS=bias is not None, STATE=state is not None,
        )  # fmt: skip
    return y


@torch.library.impl(_library, "short_conv_backward", "CompositeExplicitAutograd")
def _backward(grad, x, weight, bias, state, cu_seqlens, silu, head_dim) -> list[Tensor]:
    from swila.ops.fused.short_conv_kernels import activation_backward_kernel, convolution_backward_kernel

    (C, W), S = weight.shape, x.shape[-1] // weight.shape[0]
    call = _Launch(x, weight, bias, state, cu_seqlens, head_dim)
    grad = _rows(grad)
    # the gradient before the activation: every token reads it at the W tokens that it reaches
    da = torch.empty(grad.shape, dtype=x.dtype, device=x.device)
    grid, arguments = call.tiles(_ACTIVATION)
    parts = torch.empty((grid[0] * S, C * (W + (bias is not None))), dtype=torch.float32, device=x.device)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):
        activation_backward_kernel[grid](
            call.x, call.x.stride(0), call.weight, call.bias, call.state, grad, grad.stride(0), da, parts, **arguments,
            EPS=EPS, SILU=silu, NORM=head_dim > 0, BIAS=bias is not None, STATE=state is not None,
        )  # fmt: skip
        grid, arguments = call.tiles(_CONVOLUTION)
        convolution_backward_kernel[grid](da, call.weight, dx, **arguments)
    if bias is None:
        found = [dx, sum_of_parts(parts, weight.dtype).view(C, W)]
    else:
        sums = sum_of_parts(parts, torch.float32)
        found = [dx, sums[: C * W].view(C, W).to(weight.dtype, copy=True), sums[C * W :].to(bias.dtype, copy=True)]
    if state is not None:
        found.append(_state_gradient(da.view(x.shape), call.weight, state, cu_seqlens))
    return found


def _state_gradient(da: Tensor, weight: Tensor, state: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Return the gradient of the state: its input j is read by token p with filter ``w_{j-p}``."""
    reach, S = state.shape[1], state.shape[2] // weight.shape[0]
    filters = weight.float().repeat(S, 1).T
    total = torch.zeros(state.shape, dtype=torch.float32, device=state.device)
    if not len(da.flatten(0, 1)):
        return total.to(state.dtype)
    if cu_seqlens is None:
        starts = torch.arange(len(state), device=state.device) * da.shape[1]
        lengths = torch.full_like(starts, da.shape[1])
    else:
        starts, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff()
    tokens = da.reshape(-1, da.shape[-1])
    for p in range(reach):
        there = tokens[(starts + p).clamp_max(len(tokens) - 1)].float().where((lengths > p).unsqueeze(1), 0.0)
        total[:, p:] += there.unsqueeze(1) * filters[: reach - p]
    return total.to(state.dtype)


@torch.library.register_fake("swila::short_conv", lib=_library)
def _forward_fake(x, weight, bias, state, cu_seqlens, silu, head_dim) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("swila::short_conv_backward", lib=_library)
def _backward_fake(grad, x, weight, bias, state, cu_seqlens, silu, head_dim) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in (x, weight, bias, state) if t is not None]


once_differentiable(
    _library,
    "swila::short_conv_backward",
    "the fused short convolution is differentiable once; for gradients of gradients use use_fused(False)",
)
