"""Conversion of padded batches to packed sequences: the tokens without padding, one sequence after another.

Layers then handle variable length in one form, ``cu_seqlens``. For example, the left-padded batch

    mask  0 0 1 1        tokens . . a b
          1 1 1 1               c d e f

becomes the packed ``a b c d e f`` with ``cu_seqlens = 0 2 6``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from swila.ops.fused.sequences import Sequences as Sequences
from swila.ops.fused.sequences import sequences as sequences
from swila.ops.validation import INTEGER, check_cu_seqlens, values_are_checked


class Packed(NamedTuple):
    """The tokens of a call in the form that layers process, and the data to restore the batch.

    Attributes:
        x: Unchanged input ``[B, T, D]``, or packed tokens ``[1, tokens, D]``.
        cu_seqlens: Boundaries of the packed sequences, or None.
        kept: Indices of the packed tokens among the ``B * T``; None if nothing was removed.
        rows: Rows of the batch that have a token; None if all have.
        shape: ``(B, T)`` of the original batch.
    """

    x: Tensor
    cu_seqlens: Tensor | None
    kept: Tensor | None
    rows: Tensor | None
    shape: tuple[int, int]

    def restore(self, y: Tensor) -> Tensor:
        """Scatter results ``[1, tokens, D]`` back to ``[B, T, D]``, with zeros at the padding."""
        if self.kept is None:
            return y
        B, T = self.shape
        flat = y.new_zeros(B * T, y.shape[-1])
        return flat.index_copy(0, self.kept, y.squeeze(0)).view(B, T, -1)


def pack(x: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None, seen: int = 0) -> Packed:
    """Remove the padding from a batch ``x [B, T, D]``.

    Args:
        x: Hidden states.
        attention_mask: 1 for tokens, 0 for padding, ``[B, T]``; or ``[B, seen + T]`` for the whole text, of which the
            last T columns are used. Padding may be anywhere.
        cu_seqlens: Boundaries of sequences that are packed already; excludes a mask.
        seen: Number of previous tokens, padding included.
    """
    B, T = x.shape[:2]
    if cu_seqlens is not None:
        if attention_mask is not None:
            raise ValueError("attention_mask must be None with cu_seqlens: packed sequences have no padding")
        return Packed(x, cu_seqlens, None, None, (B, T))
    if attention_mask is None:
        return Packed(x, None, None, None, (B, T))
    if not isinstance(attention_mask, Tensor):
        raise ValueError(f"attention_mask must be a torch.Tensor [B, T], got {type(attention_mask).__name__}")
    if attention_mask.ndim != 2 or attention_mask.shape[0] != B or attention_mask.shape[1] not in (T, seen + T):
        whole = f", or [{B}, {seen + T}] for the text so far," if seen else ""
        raise ValueError(
            f"attention_mask must be [B, T] = [{B}, {T}]{whole} with 0 for padding, "
            f"got shape {list(attention_mask.shape)}"
        )
    if values_are_checked(x.device) and not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
        raise ValueError("attention_mask must be 1 for a token and 0 for padding, got other values (an additive mask?)")
    mask = attention_mask[:, -T:].ne(0)
    if bool(mask.all()):
        return Packed(x, None, None, None, (B, T))
    kept = mask.flatten().nonzero().squeeze(1)
    lengths = mask.sum(1)
    rows = None if bool(lengths.all()) else lengths.nonzero().squeeze(1)
    if rows is not None:
        lengths = lengths[rows]
    packed = x.flatten(0, 1).index_select(0, kept).unsqueeze(0)
    return Packed(packed, F.pad(lengths.cumsum(0), (1, 0)), kept, rows, (B, T))


def pack_by_position(x: Tensor, position_ids: Tensor) -> Packed:
    """Pack ``x [B, T, D]`` by its position ids ``[B, T]`` (or ``[1, T]``): a sequence starts where they are 0.

    Each row of the batch also starts a sequence.
    """
    B, T = x.shape[:2]
    _check_positions(position_ids, B, T)
    begins = position_ids.expand(B, T) == 0
    if values_are_checked(x.device) and bool(((position_ids.diff() != 1) & ~begins[: len(position_ids), 1:]).any()):
        raise ValueError("position_ids must increase by 1 at each token, or restart from 0 where a new sequence starts")
    if not bool(begins[:, 1:].any()):
        return Packed(x, None, None, None, (B, T))
    starts = (begins.flatten() | (torch.arange(B * T, device=x.device) % T == 0)).nonzero().squeeze(1)
    kept = None if B == 1 else torch.arange(B * T, device=x.device)
    return Packed(x.reshape(1, B * T, -1), F.pad(starts, (0, 1), value=B * T), kept, None, (B, T))


def split_by_position(packed: Packed, position_ids: Tensor) -> Packed:
    """Split sequences without padding further, where the position ids ``[B, T]`` (or ``[1, T]``) are 0."""
    assert packed.kept is not None
    assert packed.cu_seqlens is not None
    B, T = packed.shape
    _check_positions(position_ids, B, T)
    begins = position_ids.expand(B, T).flatten().index_select(0, packed.kept) == 0
    known = torch.zeros_like(begins).index_fill(0, packed.cu_seqlens[:-1], True)
    if not bool((begins & ~known).any()):
        return packed
    starts = (begins | known).nonzero().squeeze(1)
    return packed._replace(cu_seqlens=F.pad(starts, (0, 1), value=len(begins)), rows=None)


def _check_positions(position_ids: Tensor, B: int, T: int) -> None:
    if position_ids.ndim != 2 or position_ids.shape[1] != T or position_ids.shape[0] not in (1, B):
        raise ValueError(
            f"position_ids must be [B, T] = [{B}, {T}] (or [1, {T}]), got shape {list(position_ids.shape)}"
        )


def check_packing(cu_seqlens: Tensor, x: Tensor) -> None:
    """Raise ValueError unless these are boundaries of sequences packed in ``x [1, T, D]``.

    Values are checked depending on :func:`swila.set_value_checks`.
    """
    if not isinstance(cu_seqlens, Tensor):
        raise ValueError(f"cu_seqlens must be a torch.Tensor, got {type(cu_seqlens).__name__}")
    if x.shape[0] != 1:
        raise ValueError(f"hidden_states must have batch size 1 with cu_seqlens, got {x.shape[0]}")
    if cu_seqlens.ndim != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype not in INTEGER:
        got = f"{cu_seqlens.dtype} of shape {list(cu_seqlens.shape)}"
        raise ValueError(f"cu_seqlens must be int32 or int64 and [N + 1] with N >= 1, got {got}")
    if cu_seqlens.device != x.device:
        raise ValueError(f"cu_seqlens must be on the device of hidden_states, {x.device}, got {cu_seqlens.device}")
    if not torch.compiler.is_compiling() and values_are_checked(x.device):
        check_cu_seqlens(cu_seqlens.tolist(), x.shape[1])
