"""Checks of the operation's arguments: each error names the argument, what came and what is needed."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Literal, TypeVar

import torch
from torch import Tensor

from swila.ops.call import Inputs, Options
from swila.ops.types import SwitchingState

FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGER = (torch.int32, torch.int64)
S = TypeVar("S")
ValueChecks = Literal["cpu", "always", "never"]
_value_checks: ValueChecks | None = None


def set_value_checks(when: ValueChecks) -> None:
    """Set for which devices the *values* of arguments are checked, in addition to shapes and dtypes.

    The check reads the tensors, which on a GPU makes the host wait for the device. ``"cpu"`` (default) checks CPU
    tensors only, ``"always"`` checks tensors on a GPU too (for debugging), ``"never"`` checks none. The environment
    variable ``SWILA_VALUE_CHECKS`` sets the initial value.
    """
    global _value_checks
    if when not in ("cpu", "always", "never"):
        raise ValueError(f"value checks must be 'cpu', 'always' or 'never', got {when!r}")
    _value_checks = when


def get_value_checks() -> ValueChecks:
    """The current setting of :func:`set_value_checks`."""
    if _value_checks is None:
        set_value_checks(os.environ.get("SWILA_VALUE_CHECKS", "cpu"))  # type: ignore[arg-type]
    assert _value_checks is not None
    return _value_checks


def values_are_checked(device: torch.device) -> bool:
    """Whether values of tensors on that device are checked."""
    when = get_value_checks()
    return when == "always" or (when == "cpu" and device.type == "cpu")


def check_call(x: Inputs, options: Options) -> None:
    """Raise ValueError unless shapes, dtypes, devices and options meet the requirements of the operation."""
    _check_options(options)
    for name, tensor in x._asdict().items():
        if tensor is None and name in Inputs._field_defaults:
            continue
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{_public(name)} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise ValueError(f"{_public(name)} must be a dense (strided) tensor, got layout {tensor.layout}")
    for name, tensor, shape in (
        ("q", x.q, "[B, T, H, K]"),
        ("v", x.v, "[B, T, H, V]"),
        ("beta", x.beta, "[B, T, H, J, V]"),
    ):
        rank = shape.count(",") + 1
        if tensor.ndim != rank or 0 in tensor.shape:
            raise ValueError(f"{name} must be {shape} with no empty dimension, got shape {list(tensor.shape)}")
    _check_shapes(x)
    _check_dtypes(x)
    for name, tensor in x._asdict().items():
        if tensor is not None and tensor.device != x.q.device:
            raise ValueError(f"{_public(name)} must be on the device of q, {x.q.device}, got {tensor.device}")
    for name, value, gate in (("r", x.r, "key_gate"), ("rho", x.rho, "query_gate")):
        given = getattr(x, gate) is not None
        if x.W is not None and given != (value is not None):
            needed = f"is needed because {gate} is given" if given else f"must be None because {gate} is None"
            raise ValueError(f"initial_state.{name} {needed}, got {'None' if given else 'a tensor'}")


def check_values(x: Inputs) -> None:
    """Raise ValueError for values out of range, for the devices that :func:`set_value_checks` selects."""
    if not values_are_checked(x.q.device):
        return
    if x.cu_seqlens is not None:
        check_cu_seqlens(x.cu_seqlens.tolist(), x.q.shape[1])
    for name, low, high in (("beta", 0, 1), ("log_decay", None, 0), ("key_gate", 0, 1), ("query_gate", 0, 1)):
        tensor = getattr(x, name)
        if tensor is None:
            continue
        least, most = _range(tensor)
        if most > high or (low is not None and least < low):
            needed = f"at most {high}" if low is None else f"within [{low}, {high}]"
            raise ValueError(f"{name} must have values {needed}, got values from {least:g} to {most:g}")


def sequence_bounds(x: Inputs) -> list[int]:
    """Bounds ``[N + 1]`` of the sequences in the flattened tokens, on the host.

    ``cu_seqlens`` is checked here with any setting of :func:`set_value_checks`, since it is read in any case.
    """
    B, T = x.q.shape[:2]
    if x.cu_seqlens is None:
        return list(range(0, B * T + 1, T))
    bounds = x.cu_seqlens.tolist()
    check_cu_seqlens(bounds, T)
    return bounds


def as_state(initial_state: SwitchingState | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """An initial state as ``(W, r, rho)``; any tuple of length 3 is accepted."""
    if initial_state is None:
        return None, None, None
    if not isinstance(initial_state, tuple) or len(initial_state) != 3:
        raise ValueError(f"initial_state must be a SwitchingState(W, r, rho), got {_describe(initial_state)}")
    if initial_state[0] is None:
        raise ValueError("initial_state.W must be a torch.Tensor, got None")
    return initial_state


def check_alive(alive: Tensor | None, x: Inputs, inplace: bool) -> None:
    """Raise ValueError unless ``alive`` is None, or a mask of the rows of a step in place."""
    if alive is None:
        return
    if not inplace:
        raise ValueError("alive must be None with inplace=False: it selects the rows whose state is written to")
    if not isinstance(alive, Tensor) or alive.dtype != torch.bool or alive.shape != x.q.shape[:1]:
        got = f"{alive.dtype} of shape {list(alive.shape)}" if isinstance(alive, Tensor) else type(alive).__name__
        raise ValueError(f"alive must be bool and [B] = {list(x.q.shape[:1])}, got {got}")
    if alive.device != x.q.device or not alive.is_contiguous():
        raise ValueError(f"alive must be contiguous and on the device of q, {x.q.device}, got {alive.device}")


def _check_options(options: Options) -> None:
    if options.decay_order not in ("pre", "post"):
        raise ValueError(f"decay_order must be 'pre' or 'post', got {options.decay_order!r}")
    for name in ("normalize", "return_state", "routing_stats"):
        value = getattr(options, name)
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def _check_shapes(x: Inputs) -> None:
    B, T, H = _most_common([t.shape[:3] for t in (x.q, x.k, x.v, x.beta, x.key_logits, x.query_logits)])
    K = x.q.shape[3]
    routed = [t.shape for t in (x.beta, x.key_logits, x.query_logits) if t.ndim == 5]
    V = _most_common([x.v.shape[3], *(shape[4] for shape in routed)])
    J = _most_common([shape[3] for shape in routed])
    N = B
    if x.cu_seqlens is not None:
        if B != 1:
            raise ValueError(f"q must have batch size B = 1 when cu_seqlens is given, got B = {B}")
        if x.cu_seqlens.ndim != 1 or x.cu_seqlens.shape[0] < 2:
            raise ValueError(f"cu_seqlens must be [N + 1] with N >= 1, got shape {list(x.cu_seqlens.shape)}")
        N = x.cu_seqlens.shape[0] - 1
    needed = {
        "q": ("[B, T, H, K]", (B, T, H, K)),
        "k": ("[B, T, H, K]", (B, T, H, K)),
        "v": ("[B, T, H, V]", (B, T, H, V)),
        "beta": ("[B, T, H, J, V]", (B, T, H, J, V)),
        "key_logits": ("[B, T, H, J, V]", (B, T, H, J, V)),
        "query_logits": ("[B, T, H, J, V]", (B, T, H, J, V)),
        "key_gate": ("[B, T, H, V]", (B, T, H, V)),
        "query_gate": ("[B, T, H, V]", (B, T, H, V)),
        "W": ("[N, H, J, V, K]", (N, H, J, V, K)),
        "r": ("[N, H, J, V]", (N, H, J, V)),
        "rho": ("[N, H, J, V]", (N, H, J, V)),
    }
    for name, (symbols, shape) in needed.items():
        tensor = getattr(x, name)
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{_public(name)} must be {symbols} = {list(shape)}, got shape {list(tensor.shape)}")
    if x.log_decay is not None:
        head = (B, T, H, J)
        shapes = [(*head, 1, K), (*head, V, 1), (*head, 1, 1)]
        if x.log_decay.shape not in shapes:
            raise ValueError(
                f"log_decay must be [B, T, H, J, 1, K] = {list(shapes[0])} (per key dim), [B, T, H, J, V, 1] = "
                f"{list(shapes[1])} (per output dim) or [B, T, H, J, 1, 1] = {list(shapes[2])} (per head), "
                f"got shape {list(x.log_decay.shape)}"
            )


def _most_common(sizes: list[S]) -> S:
    """The most frequent size, the first of several: the error then names the argument that differs."""
    return max(sizes, key=sizes.count)


def _check_dtypes(x: Inputs) -> None:
    if x.q.dtype not in FLOATING:
        raise ValueError(f"q must be float32, bfloat16, float16 or float64, got {x.q.dtype}")
    for name in ("k", "v"):
        if getattr(x, name).dtype != x.q.dtype:
            raise ValueError(f"{name} must have the dtype of q, {x.q.dtype}, got {getattr(x, name).dtype}")
    double = x.q.dtype == torch.float64
    for name in ("beta", "key_logits", "query_logits", "log_decay", "key_gate", "query_gate"):
        tensor = getattr(x, name)
        if tensor is not None and (tensor.dtype not in FLOATING or (tensor.dtype == torch.float64) != double):
            needed = "float64 because q is" if double else "float32, bfloat16 or float16"
            raise ValueError(f"{name} must be {needed}, got {tensor.dtype}")
    for name in ("W", "r", "rho"):
        tensor = getattr(x, name)
        if tensor is not None and tensor.dtype != x.compute_dtype:
            raise ValueError(
                f"{_public(name)} must be {x.compute_dtype} for q of {x.q.dtype} (state is kept in full "
                f"precision), got {tensor.dtype}"
            )
    if x.cu_seqlens is not None and x.cu_seqlens.dtype not in INTEGER:
        raise ValueError(f"cu_seqlens must be int32 or int64, got {x.cu_seqlens.dtype}")


def check_cu_seqlens(bounds: list[int], T: int) -> None:
    """Raise ValueError unless the bounds of packed sequences start at 0, end at T and increase."""
    shown = f"[{', '.join(map(str, bounds[:4]))}, ..., {bounds[-1]}]" if len(bounds) > 6 else str(bounds)
    if bounds[0] != 0 or bounds[-1] != T:
        raise ValueError(f"cu_seqlens must start at 0 and end at T = {T}, got {shown}")
    if any(end <= start for start, end in pairwise(bounds)):
        raise ValueError(f"cu_seqlens must increase strictly (no empty sequence), got {shown}")


def _range(tensor: Tensor) -> tuple[float, float]:
    """Minimum and maximum, NaN excluded: NaN is an allowed value that propagates to the output."""
    values = tensor.detach()
    bounds = torch.aminmax(values)
    if bounds.min.isnan():
        values = values[~values.isnan()]
        if values.numel() == 0:
            return 0.0, 0.0
        bounds = torch.aminmax(values)
    return bounds.min.item(), bounds.max.item()


def _public(name: str) -> str:
    return f"initial_state.{name}" if name in SwitchingState._fields else name


def _describe(value: object) -> str:
    return f"a {type(value).__name__}" + (f" of length {len(value)}" if isinstance(value, tuple) else "")
