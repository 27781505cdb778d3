"""Decode steps of blocks and mixers in a few fused kernels, for one token of up to 128 rows.

A step of a recurrent layer is four launches: the norm and all projections of the input; convolutions, norms and gates;
the recurrence; output norm, gate, projection and residual. Attention has one more or two. A feed-forward layer is two.
With more than one row, norms are launches of their own. :func:`fuses` says whether a block can be run in this way;
otherwise its own ``step`` is the definition, and does the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from swila.layers.attention import Attention
from swila.layers.cache import LayerState
from swila.layers.decay import DecayGate
from swila.layers.delta_net import DeltaNet, DeltaRuleMixer, GatedDeltaNet, KimiDeltaAttention
from swila.layers.mixer import SequenceMixer
from swila.layers.projection import SwiGLU
from swila.layers.recurrent import RecurrentMixer
from swila.layers.short_conv import ShortConvolution
from swila.layers.swila import SwiLA
from swila.ops import SwitchingState, switching_delta_rule_step
from swila.ops.fused.choice import serves
from swila.ops.fused.expand import MOST_RANK
from swila.ops.fused.modules import is_plain
from swila.ops.fused.skinny import MOST_ROWS, Prologue, skinny
from swila.ops.fused.step_attention import step_attention
from swila.ops.fused.step_operands import Heads, Operand, step_operands

RECURRENT = (SwiLA, DeltaNet, GatedDeltaNet, KimiDeltaAttention)  # and no subclasses, which may compute something else
ALIGNMENT = 16  # bytes


def plain(module: nn.Module | None, dtype: torch.dtype, kind: type[nn.Module] = nn.Linear) -> bool:
    """Return whether a module is exactly of a kind, without hooks, and has its own dense weight of a dtype."""
    if module is None or not is_plain(module, kind):
        return False
    weight = module.weight
    return (
        type(weight) is nn.Parameter
        and weight.dtype == dtype
        and weight.is_contiguous()
        and weight.data_ptr() % ALIGNMENT == 0
    )


def fuses(mixer: SequenceMixer, norms: Iterable[nn.Module], mlp: nn.Module, x: Tensor) -> bool:
    """Return whether a decode step of a block on ``x [B, ...]`` can run in fused kernels.

    It can where Triton's kernels serve the tensors, and all parts are the modules of this package: not wrapped,
    sharded, quantised or replaced, without hooks, in one dtype, in evaluation, without autocast.
    """
    if torch.is_autocast_enabled(x.device.type) or mixer.training or not 1 <= x.shape[0] <= MOST_ROWS:
        return False
    if not serves(x) or not all(plain(norm, x.dtype, nn.RMSNorm) for norm in norms):
        return False
    if not is_plain(mlp, SwiGLU):
        return False
    if not all(plain(part, x.dtype) and part.bias is None for part in (mlp.gate, mlp.up, mlp.down)):
        return False
    return _fuses_recurrent(mixer, x.dtype) or _fuses_attention(mixer, x.dtype)


def fused_step(
    mixer: Any, mixer_norm: nn.RMSNorm, mlp_norm: nn.RMSNorm, mlp: Any, x: Tensor, state: LayerState, alive: Tensor
) -> Tensor:
    """Run a decode step of a block on ``x [B, hidden_size]`` and return the same shape; see :func:`fuses`.

    Args:
        mixer: Mixer of the block.
        mixer_norm: Norm before the mixer.
        mlp_norm: Norm before the feed-forward layer.
        mlp: The feed-forward layer.
        x: Input.
        state: State of the mixer; updated in place.
        alive: Rows to update, bool ``[B]``.
    """
    step = _attention_step if isinstance(mixer, Attention) else _recurrent_step
    x = step(mixer, _norm(mixer_norm), x, state, alive)
    inner = skinny(x, [mlp.gate.weight, mlp.up.weight], _norm(mlp_norm), swiglu=True)
    return skinny(inner, [mlp.down.weight], residual=x)


def _norm(norm: nn.RMSNorm) -> Prologue:
    eps = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
    return Prologue(norm.weight, eps)


class _Projections:
    """The matrices of one product, and the column at which each begins."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []
        self.columns = 0

    def add(self, weight: Tensor) -> int:
        self.weights.append(weight)
        self.columns += weight.shape[0]
        return self.columns - weight.shape[0]

    def operand(self, kind: str, projection: nn.Module, bias: Tensor | None = None, **more: Any) -> Operand:
        """An operand by a linear or low-rank projection."""
        if isinstance(projection, nn.Sequential):
            inner, outer = _parts(projection)
            bias = outer.bias if bias is None else bias
            return Operand(kind, outer.weight.shape[0], self.add(inner.weight), outer.weight, bias, **more)
        assert isinstance(projection, nn.Linear)
        bias = projection.bias if bias is None else bias
        width = projection.weight.shape[0] * more.get("repeat", 1)
        return Operand(kind, width, self.add(projection.weight), None, bias, **more)

    def decay(self, gate: DecayGate) -> Operand:
        return self.operand("decay", gate.proj, gate.dt_bias, rates=gate.A_log, group=gate.width)


def _recurrent_step(mixer: Any, norm: Prologue, x: Tensor, state: LayerState, alive: Tensor) -> Tensor:
    joint = _Projections()
    heads = _heads(mixer, joint, state)
    others = _swila_operands(mixer, joint) if isinstance(mixer, SwiLA) else _delta_operands(mixer, joint)
    gate_column, low_rank_gate = None, isinstance(mixer.g_proj, nn.Sequential)
    if low_rank_gate:
        others["gate"] = joint.operand("linear", mixer.g_proj)
    elif mixer.g_proj is not None:
        gate_column = joint.add(mixer.g_proj.weight)
    product = skinny(x, joint.weights, norm)
    found = step_operands(product, alive, heads, list(others.values()))
    named = dict(zip(("q", "k", "v", *others), found, strict=True))
    gate = named.pop("gate", None)
    if gate_column is not None:
        gate = product[:, gate_column : gate_column + mixer.g_proj.weight.shape[0]]
    if "logits" in named:  # one mixture
        named["key_logits"] = named["query_logits"] = named.pop("logits")
    past: Any = state["recurrent_state"]
    out = switching_delta_rule_step(
        **_shaped(mixer, named), initial_state=SwitchingState(*past), backend=mixer.backend, inplace=True, alive=alive,
        decay_order=getattr(mixer, "decay_order", "pre"), normalize=getattr(mixer, "normalize", True),
    )  # fmt: skip
    after = Prologue(mixer.o_norm.weight, _norm(mixer.o_norm).eps, mixer.head_v_dim, gate, mixer.output_gate_activation)
    return skinny(out.output.flatten(1), [mixer.o_proj.weight], after, residual=x)


def _heads(mixer: Any, joint: _Projections, state: LayerState) -> list[Heads]:
    past: Any = state.get("conv_state")
    found = []
    for i, (name, dim) in enumerate((("q", mixer.head_k_dim), ("k", mixer.head_k_dim), ("v", mixer.head_v_dim))):
        column = joint.add(getattr(mixer, f"{name}_proj").weight)
        heads = Heads(column, mixer.num_heads, dim)
        if mixer.convolves is not None:
            conv: ShortConvolution = getattr(mixer, f"{name}_conv1d")
            heads = heads._replace(weight=conv.weight, bias=conv.bias, state=past[i])
        found.append(heads)
    return found


def _swila_operands(mixer: SwiLA, joint: _Projections) -> dict[str, Operand]:
    found = {"beta": joint.operand("sigmoid", mixer.b_proj)}
    if mixer.num_mixtures > 1:
        found["key_logits"] = joint.operand("linear", mixer.key_router)
        found["query_logits"] = joint.operand("linear", mixer.query_router)
    else:
        found["logits"] = Operand("zeros", found["beta"].width)
    if mixer.temporal:
        found["key_gate"] = joint.operand("sigmoid", mixer.key_gate, mixer.key_gate_bias)
        found["query_gate"] = joint.operand("sigmoid", mixer.query_gate, mixer.query_gate_bias)
    if mixer.decay_kind is not None:
        found["log_decay"] = joint.decay(mixer.decay)
    return found


def _delta_operands(mixer: DeltaRuleMixer, joint: _Projections) -> dict[str, Operand]:
    width = mixer.num_heads * mixer.head_v_dim
    found = {"beta": joint.operand("sigmoid", mixer.b_proj, repeat=mixer.head_v_dim), "logits": Operand("zeros", width)}
    if mixer.decay is not None:
        found["log_decay"] = joint.decay(mixer.decay)
    return found


def _shaped(mixer: Any, named: dict[str, Tensor]) -> dict[str, Any]:
    """Return the operands ``[B, N]`` in the shapes of the operation, with a time axis."""
    H, J, V = mixer.num_heads, getattr(mixer, "num_mixtures", 1), mixer.head_v_dim
    shaped: dict[str, Any] = {name: named[name].unsqueeze(1) for name in ("q", "k", "v")}
    for name in ("beta", "key_logits", "query_logits"):
        shaped[name] = named[name].view(-1, 1, H, J, V)
    for name in ("key_gate", "query_gate"):
        if name in named:
            shaped[name] = named[name].view(-1, 1, H, V)
    if "log_decay" in named:
        by_value = getattr(mixer, "decay_kind", None) == "value"
        log_decay = named["log_decay"].view(len(named["q"]), 1, H, J, -1)
        shaped["log_decay"] = log_decay.unsqueeze(-1 if by_value else -2)
    return shaped


def _attention_step(mixer: Attention, norm: Prologue, x: Tensor, state: LayerState, alive: Tensor) -> Tensor:
    weights = [mixer.q_proj.weight, mixer.k_proj.weight, mixer.v_proj.weight]
    if mixer.g_proj is not None:
        weights.append(mixer.g_proj.weight)
    product = skinny(x, weights, norm)
    past: Any = state["attn_state"]
    keys, values, lengths = past
    if keys.dtype != x.dtype:
        raise ValueError(
            f"state must hold keys and values of the model's dtype, {x.dtype}, got {keys.dtype}: continue it under the "
            "autocast that it was made with"
        )
    norms, eps = None, 0.0
    if mixer.q_norm is not None and mixer.k_norm is not None:
        norms, eps = (mixer.q_norm.weight, mixer.k_norm.weight), _norm(mixer.q_norm).eps
    o = step_attention(product, keys, values, lengths, alive, mixer.num_heads, mixer.rope_theta, norms, eps)
    gate = None if mixer.g_proj is None else product[:, -o.shape[1] :]
    return skinny(o, [mixer.o_proj.weight], Prologue(gate=gate, activation="sigmoid"), residual=x)


def _fuses_recurrent(mixer: SequenceMixer, dtype: torch.dtype) -> bool:
    if type(mixer) not in RECURRENT:
        return False
    assert isinstance(mixer, RecurrentMixer)
    if mixer.backend == "fla" or mixer.convolves == "input" or getattr(mixer, "_change", None) is not None:
        return False
    if not all(_is_power_of_two(size) for size in (mixer.head_k_dim, mixer.head_v_dim)):
        return False
    projections = [mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.o_proj]
    if any(projection.bias is not None for projection in projections):
        return False
    parts: list[nn.Module | None] = [mixer.b_proj, mixer.g_proj]  # type: ignore[list-item]
    for name in ("key_router", "query_router", "key_gate", "query_gate"):
        parts.append(getattr(mixer, name, None))
    decay = getattr(mixer, "decay", None)
    if decay is not None:
        if not is_plain(decay, DecayGate):
            return False
        parts.append(decay.proj)
    for part in parts:
        if type(part) is nn.Sequential:
            # the second matrix may have a bias, which an operand adds; that of a decay is dt_bias
            if not is_plain(part, nn.Sequential) or len(part) != 2 or getattr(part[0], "bias", None) is not None:
                return False
            if decay is not None and part is decay.proj and getattr(part[1], "bias", None) is not None:
                return False
            if getattr(part[0], "out_features", 0) > MOST_RANK:  # a kernel has the whole rank in one product
                return False
            projections += _parts(part)
        elif part is not None:
            if getattr(part, "bias", None) is not None:
                return False
            projections.append(part)  # type: ignore[arg-type]
    convolutions = [mixer.q_conv1d, mixer.k_conv1d, mixer.v_conv1d] if mixer.convolves else []
    return (
        all(plain(projection, dtype) for projection in projections)
        and all(plain(conv, dtype, ShortConvolution) and conv.activation == "silu" for conv in convolutions)
        and plain(mixer.o_norm, dtype, nn.RMSNorm)
    )


def _fuses_attention(mixer: SequenceMixer, dtype: torch.dtype) -> bool:
    if type(mixer) is not Attention or mixer.convolves is not None or not _is_power_of_two(mixer.head_dim):
        return False
    projections = [mixer.q_proj, mixer.k_proj, mixer.v_proj, mixer.o_proj]
    if mixer.g_proj is not None:
        projections.append(mixer.g_proj)
    norms = [norm for norm in (mixer.q_norm, mixer.k_norm) if norm is not None]
    if len({norm.eps for norm in norms}) > 1:  # one epsilon for both
        return False
    return (
        all(plain(projection, dtype) and projection.bias is None for projection in projections)
        and all(plain(norm, dtype, nn.RMSNorm) for norm in norms)
    )  # fmt: skip


def _parts(projection: nn.Sequential) -> list[nn.Linear]:
    return list(projection)  # type: ignore[arg-type]


def _is_power_of_two(size: int) -> bool:
    return 16 <= size <= 256 and size & (size - 1) == 0
