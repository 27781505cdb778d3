"""Softmax attention, with rotary positions or with forget gates (FoX)."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swila.layers import fla
from swila.layers.cache import LayerState, Shape
from swila.layers.checks import check_counts, check_flags, check_numbers
from swila.layers.context import CallContext
from swila.layers.norms import rms_norm
from swila.layers.options import AttentionOptions, SharedOptions, forwards
from swila.layers.packing import Sequences, sequences
from swila.layers.qkv import QKVMixer
from swila.ops.fused.rotary import rotary_table, rotate


class Attention(QKVMixer):
    """Causal softmax attention, computed by :func:`torch.nn.functional.scaled_dot_product_attention`.

    Args:
        hidden_size: Width of the input and output.
        num_heads: Number of query heads.
        num_kv_heads: See :class:`~swila.layers.options.AttentionOptions`.
        head_dim: See :class:`~swila.layers.options.AttentionOptions`.
        rope_theta: Base of the rotary position embedding; None for no positions.
        qkv_bias: See :class:`~swila.layers.options.AttentionOptions`.
        out_bias: Whether the output projection has a bias.
        qk_norm: See :class:`~swila.layers.options.AttentionOptions`.
        use_output_gate: See :class:`~swila.layers.options.AttentionOptions`.
        use_short_conv: See :class:`~swila.layers.options.AttentionOptions`.
        shared: See :class:`~swila.layers.options.SharedOptions`.
    """

    @forwards(SharedOptions, to=QKVMixer)
    def __init__(
        self,
        hidden_size: int,
        num_heads: int = 8,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        rope_theta: float | None = 10000.0,
        qkv_bias: bool = False,
        out_bias: bool = False,
        qk_norm: bool = False,
        use_output_gate: bool = False,
        use_short_conv: bool = False,
        **shared: Unpack[SharedOptions],
    ) -> None:
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_counts(hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads)
        check_flags(out_bias=out_bias, qk_norm=qk_norm, use_output_gate=use_output_gate)
        if head_dim is not None:
            check_counts(head_dim=head_dim)
        if rope_theta is not None:
            check_numbers(rope_theta=rope_theta)
        if rope_theta is not None and not rope_theta > 0:
            raise ValueError(f"rope_theta must be above 0, or None for no positions, got {rope_theta!r}")
        if head_dim is None and hidden_size % num_heads:
            raise ValueError(f"num_heads must divide hidden_size = {hidden_size}, got {num_heads}")
        if num_heads % num_kv_heads:
            raise ValueError(f"num_kv_heads must divide num_heads = {num_heads}, got {num_kv_heads}")
        D = hidden_size // num_heads if head_dim is None else head_dim
        if rope_theta is not None and D % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {D}; or set rope_theta=None")
        kv_dim = num_kv_heads * D
        super().__init__(
            hidden_size,
            num_heads * D,
            kv_dim,
            kv_dim,
            activation=None,
            qkv_bias=qkv_bias,
            use_short_conv=use_short_conv,
            **shared,
        )
        self.num_heads, self.num_kv_heads, self.head_dim, self.rope_theta = num_heads, num_kv_heads, D, rope_theta
        self.q_norm = nn.RMSNorm(D, eps=self.norm_eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(D, eps=self.norm_eps) if qk_norm else None
        self.g_proj = nn.Linear(hidden_size, num_heads * D, bias=False) if use_output_gate else None
        self.o_proj = nn.Linear(num_heads * D, hidden_size, bias=out_bias)

    def readers(self) -> dict[str, nn.Module]:
        """See :meth:`QKVMixer.readers`."""
        gate = {} if self.g_proj is None else {"g_proj": self.g_proj}
        return {**super().readers(), **gate}

    def mix(self, x: Tensor, past: LayerState | None, context: CallContext) -> tuple[Tensor, LayerState | None]:
        """See :meth:`SequenceMixer.mix`."""
        past = past or {}
        x, q, k, v, conv_state, project = self.project_qkv(x, past.get("conv_state"), context)
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)) for t in (q, k, v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = rms_norm(self.q_norm, q), rms_norm(self.k_norm, k)
        layout = None if context.cu_seqlens is None else sequences(context.cu_seqlens, x.shape[1])
        if self.rope_theta is not None:
            position = self._positions(x, past.get("attn_state"), layout)
            table = rotary_table(position, self.head_dim, self.rope_theta, q.dtype)
            q, k = rotate(q, table), rotate(k, table)
        if context.return_state:  # parts of a joint product would keep all of it
            k, v = k.contiguous(), v.contiguous()
        new = (k, v, *self.extras(x))
        if context.alive is not None:
            o, attn_state = self.attend_in_place(q, new, past["attn_state"], context.alive)
        else:
            o, attn_state = self.attend(q, new, past.get("attn_state"), layout, context.return_state)
        o = o.flatten(-2)
        if self.g_proj is not None:
            o = o * project("g_proj").sigmoid()
        return self.o_proj(o), {"attn_state": attn_state, "conv_state": conv_state} if context.return_state else None

    def step(self, x: Tensor, state: LayerState, alive: Tensor) -> Tensor:
        """See :meth:`SequenceMixer.step`; updates the state in place."""
        return self.mix(x, state, CallContext(return_state=True, alive=alive))[0]

    def extras(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what is cached per token in addition to key and value; each tensor is ``[B, T, ...]``."""
        return ()

    def extra_shapes(self) -> tuple[tuple[int, ...], ...] | None:
        """Return the shapes of :meth:`extras` for one token; None disables the check of cached states."""
        return () if type(self).extras is Attention.extras else None

    def bias(self, kept: tuple[Tensor, ...], queries: int) -> Tensor | None:
        """Return a bias ``[N, H, queries, S]`` for the logits from the cached tensors of S tokens, or None."""
        return None

    def attend(
        self, q: Tensor, kept: tuple[Tensor, ...], past: Any, layout: Sequences | None, return_state: bool
    ) -> tuple[Tensor, Any]:
        """Return the attention output of ``q [B, T, H, D]`` over these and earlier tokens, and the new state.

        The state is ``(*kept, valid)``: keys, values and extras of S tokens, and the mask ``valid [N, S]`` of tokens.
        Rows may contain padding, before the tokens of the next call.
        """
        index, N, T = None, q.shape[0], q.shape[1]
        valid = torch.ones(N, T, dtype=torch.bool, device=q.device)
        if layout is not None:  # unpack sequences into rows padded on the right; causality hides the padding
            N, T = len(layout.lengths), int(layout.lengths.max())
            index = layout.row * T + layout.position
            valid = torch.zeros(N * T, dtype=torch.bool, device=q.device).index_fill(0, index, True).view(N, T)
            q, *rest = (t.new_zeros(N * T, *t.shape[2:]).index_copy(0, index, t[0]).view(N, T, *t.shape[2:])
                        for t in (q, *kept))  # fmt: skip
            kept = tuple(rest)
        if past is not None:
            *before, valid_before = past
            kept = tuple(torch.cat([a, b], 1) for a, b in zip(before, kept, strict=True))
            valid = torch.cat([valid_before, valid], 1)
        S = valid.shape[1]
        bias = self.bias(kept, T)
        mask: Tensor | None = None
        if past is not None or bias is not None:
            causal = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
            itself = causal.triu(S - T)  # padding attends to itself, so that no softmax is empty
            mask = ((causal & valid[:, None, :]) | itself).unsqueeze(1)
        o = self._softmax_attention(q, kept, mask, bias)
        if index is not None:
            o = o.flatten(0, 1)[index].unsqueeze(0)
        return o, (*kept, valid) if return_state else None

    def attend_in_place(self, q: Tensor, new: tuple[Tensor, ...], state: Any, alive: Tensor) -> tuple[Tensor, Any]:
        """Attend with one token; ``state`` is ``(*kept, length)``: buffers, and the token's slot ``length [B]``."""
        *kept, length = state
        row = torch.arange(len(length), device=length.device)
        for buffer, token in zip(kept, new, strict=True):
            buffer[row, length] = token[:, 0].to(buffer.dtype)
        slots = torch.arange(kept[0].shape[1], device=length.device)
        visible = (slots <= length.unsqueeze(1))[:, None, None, :]
        o = self._softmax_attention(q, tuple(kept), visible, self.bias(tuple(kept), 1))
        length += alive
        return o, state

    def _softmax_attention(
        self, q: Tensor, kept: tuple[Tensor, ...], mask: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        if bias is not None:
            assert mask is not None
            mask = bias.masked_fill(~mask, float("-inf")).to(q.dtype)
        return F.scaled_dot_product_attention(
            q.transpose(1, 2),
            kept[0].transpose(1, 2),
            kept[1].transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=self.num_kv_heads != self.num_heads,
        ).transpose(1, 2)

    def _positions(self, x: Tensor, past: Any, layout: Sequences | None) -> Tensor:
        seen = None if past is None else past[-1]  # lengths [B] (decoding), or a mask of tokens [B, S]
        if seen is not None and seen.ndim == 2:
            seen = seen.sum(1)
        if layout is not None:
            position = layout.position if seen is None else layout.position + seen[layout.row]
            return position.unsqueeze(0)
        position = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        return position if seen is None else position + seen.unsqueeze(1)

    def merge(self, past: LayerState, after: LayerState, rows: Tensor) -> LayerState:
        """See :meth:`SequenceMixer.merge`; rows without a token are padded to the length of the others."""
        grown = after["attn_state"][-1].shape[1] - past["attn_state"][-1].shape[1]
        padded = tuple(F.pad(t, (0, 0) * (t.ndim - 2) + (0, grown)) for t in past["attn_state"])
        return super().merge({**past, "attn_state": padded}, after, rows)

    def decoding_state(self, state: LayerState, capacity: int) -> LayerState:
        """See :meth:`SequenceMixer.decoding_state`; each row holds its tokens without padding, then free slots."""
        *kept, valid = state["attn_state"]
        order = valid.logical_not().argsort(dim=1, stable=True)
        buffers = []
        for t in kept:
            buffer = t.new_zeros(t.shape[0], capacity, *t.shape[2:])
            tokens = t[torch.arange(len(t), device=t.device).unsqueeze(1), order][:, :capacity]
            buffer[:, : tokens.shape[1]] = tokens * valid.gather(1, order)[:, :capacity].view(
                *tokens.shape[:2], *[1] * (t.ndim - 2)
            )
            buffers.append(buffer)
        convolutions = super().decoding_state({"conv_state": state.get("conv_state")}, capacity)
        return {**convolutions, "attn_state": (*buffers, valid.sum(1))}

    def cached_state(self, state: LayerState) -> LayerState:
        """See :meth:`SequenceMixer.cached_state`."""
        *buffers, length = state["attn_state"]
        longest = int(length.max())
        valid = torch.arange(longest, device=length.device) < length.unsqueeze(1)
        kept = [t[:, :longest] * valid.view(*valid.shape, *[1] * (t.ndim - 2)) for t in buffers]
        convolutions = super().cached_state({"conv_state": state.get("conv_state")})
        return {**convolutions, "attn_state": (*kept, valid)}

    def state_form(self) -> dict[str, tuple[Shape, ...] | None] | None:
        """See :meth:`SequenceMixer.state_form`: keys, values, extras and mask of T tokens."""
        extras = self.extra_shapes()
        if extras is None:
            return None
        token = (-1, self.num_kv_heads, self.head_dim)
        kept = (token, token, *((-1, *shape) for shape in extras), (-1,))
        return {"recurrent_state": None, "attn_state": kept, "conv_state": self.conv_form()}

    def state_size(self, length: int = 1) -> int:
        """Return the number of scalars in keys and values of ``length`` tokens."""
        return 2 * self.num_kv_heads * self.head_dim * length

    def mixing_flops(self, length: int) -> float:
        """Return ``2 T D`` for each of the query heads: ``Q Kᵀ`` and ``P V`` over T / 2 tokens on average."""
        return 2.0 * length * self.num_heads * self.head_dim


class ForgettingAttention(Attention):
    """Softmax attention with forget gates: ``logits_ts = q_t · k_s / √D + Σ_{s<i<=t} log f_i``, f a sigmoid per head.

    From *Forgetting Transformer: Softmax Attention with a Forget Gate* (Lin et al., 2025), without positions.

    Args:
        hidden_size: Width of the input and output.
        num_heads: Number of query heads.
        backend: ``"torch"``, or ``"fla"`` for the kernel of flash-linear-attention in calls without a cache.
        shared: See :class:`~swila.layers.options.AttentionOptions`; ``help`` lists them under ``__init__``.
    """

    @forwards(AttentionOptions, to=Attention)
    def __init__(
        self, hidden_size: int, num_heads: int = 8, backend: str = "torch", **shared: Unpack[AttentionOptions]
    ) -> None:
        if backend not in ("torch", "fla"):
            raise ValueError(f"backend must be 'torch' or 'fla', got {backend!r}")
        super().__init__(hidden_size, num_heads, rope_theta=None, **shared)
        self.backend = backend
        self.f_proj = nn.Linear(hidden_size, num_heads, bias=True)

    def extras(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return ``log f [B, T, H]``, in float32 or float64."""
        logits = self.f_proj(x)
        return (F.logsigmoid(logits if logits.dtype == torch.float64 else logits.float()),)

    def extra_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shape of ``log f`` for one token."""
        return ((self.num_heads,),)

    def bias(self, kept: tuple[Tensor, ...], queries: int) -> Tensor:
        """Return ``Σ_{s<i<=t} log f_i`` for the last ``queries`` tokens t and all s, zero for s > t."""
        total = kept[2].cumsum(1, dtype=torch.float64).transpose(1, 2)  # [N, H, S]
        forgotten = total[:, :, -queries:, None] - total[:, :, None, :]
        return forgotten.clamp_max(0).to(kept[2].dtype)

    def attend(
        self, q: Tensor, kept: tuple[Tensor, ...], past: Any, layout: Sequences | None, return_state: bool
    ) -> tuple[Tensor, Any]:
        """See :meth:`Attention.attend`; backend ``"fla"`` is used where no state is read or returned."""
        if self.backend == "fla" and past is None and not return_state:
            k, v, log_forget = kept
            cu_seqlens = None if layout is None else F.pad(layout.lengths.cumsum(0), (1, 0))
            return fla.forgetting_attention(q, k, v, log_forget, cu_seqlens), None
        return super().attend(q, kept, past, layout, return_state)
