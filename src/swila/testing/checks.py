"""Comparison of a backend with the reference in float64: everything it returns, and every gradient.

The tolerance is derived from the data. The reference token loop, run on the same inputs in the backend's precision, has
an error relative to float64. A backend may have a few times that error, since it sums in another order, plus a floor of
some roundings, for cases where the loop happens to be very accurate. A backend that uses matrix units rounds the
operands of its products; the token loop with operands rounded to as many bits gives its tolerance, times two. Over a
long sequence without decay, rounding errors grow along few directions, and the error of one run is then close to a
single random number, which may be near zero. If the tolerance from one rounding fails, it is therefore replaced by the
root mean square over several independent roundings.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swila.ops import SwitchingOutput, SwitchingState, reference, switching_delta_rule
from swila.ops.backends import get_backend, register_backend, unregister_backend
from swila.ops.call import PER_TOKEN, STATE

TIMES_REFERENCE = 4.0
TIMES_ROUNDED = 2.0
TIMES_DRAWN = 4  # independent roundings; with one, the tolerance was seen to be ten times too small
ROUNDINGS = 64.0  # a long sum in another order; up to 25 were seen where the token loop is very accurate


class Check(NamedTuple):
    """The relative error of one returned tensor or gradient, and its tolerance."""

    name: str
    error: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance; False for NaN."""
        return self.error <= self.allowed

    @property
    def severity(self) -> float:
        """The error relative to the tolerance; infinite for NaN."""
        return math.inf if math.isnan(self.error) else self.error / self.allowed

    def __str__(self) -> str:
        return f"{self.name} off by {self.error:.1e}, {self.allowed:.1e} allowed"


def leaves(call: dict[str, Any]) -> dict[str, Tensor]:
    """Return the differentiable tensors of a call by name."""
    state = call.get("initial_state") or (None, None, None)
    tensors = {name: call.get(name) for name in PER_TOKEN}
    tensors |= {f"initial_{name}": part for name, part in zip(STATE, state, strict=True)}
    return {name: t for name, t in tensors.items() if t is not None}


def results(output: SwitchingOutput) -> dict[str, Tensor]:
    """Return all tensors of an output by name."""
    parts: dict[str, Tensor | None] = {"output": output.output}
    parts |= {} if output.state is None else output.state._asdict()
    parts |= {} if output.stats is None else output.stats._asdict()
    return {name: t for name, t in parts.items() if t is not None}


def evaluate(call: dict[str, Any], backend: str, gradients: bool = True, statistics: bool = True) -> dict[str, Tensor]:
    """Return all results of a call and, as ``d name``, the gradients of a fixed random linear combination of them."""
    found = results(switching_delta_rule(**call, return_state=True, routing_stats=statistics, backend=backend))
    inputs = {name: t for name, t in leaves(call).items() if t.requires_grad}
    if gradients:
        generator = torch.Generator().manual_seed(1)
        # Multiples of 1/64 below 2 are exact in every dtype.
        weights = [
            torch.randint(-127, 128, t.shape, generator=generator, device="cpu").to(t) / 64 for t in found.values()
        ]
        grads = torch.autograd.grad(list(found.values()), list(inputs.values()), weights)
        found |= {f"d {name}": grad for name, grad in zip(inputs, grads, strict=True)}
    return {name: t.detach() for name, t in found.items()}


def exact(call: dict[str, Any], gradients: bool = True, statistics: bool = True) -> dict[str, Tensor]:
    """Return the results of the reference in float64 on the CPU; see :func:`evaluate`."""
    return evaluate(_converted(call, torch.float64, "cpu"), "reference", gradients, statistics)


def check_backend(call: dict[str, Any], backend: str, gradients: bool = True, statistics: bool = True) -> list[Check]:
    """Compare a backend with the reference.

    Args:
        call: Keyword arguments of :func:`swila.switching_delta_rule`.
        backend: Name of the backend.
        gradients: Whether to compare gradients.
        statistics: Whether to request routing statistics; kernels take another path without them.
    """
    truth = exact(call, gradients, statistics)
    dtype, full = call["q"].dtype, torch.finfo(torch.float32).eps
    yardstick, scale = evaluate(_converted(call, None, "cpu"), "reference", gradients, statistics), 1.0
    if dtype == torch.float64:  # no dtype is more precise; scale the error of float32
        yardstick = evaluate(_converted(call, torch.float32, "cpu"), "reference", gradients, statistics)
        scale = torch.finfo(torch.float64).eps / full
        full = torch.finfo(torch.float64).eps
    allowed = {
        name: TIMES_REFERENCE * scale * _error(t, truth[name]) + ROUNDINGS * full for name, t in yardstick.items()
    }
    errors = {name: _error(t, truth[name]) for name, t in evaluate(call, backend, gradients, statistics).items()}
    bits = get_backend(backend).operand_bits(dtype) or 0

    def compared(draws: int) -> list[Check]:
        """Return the checks with the tolerance from a number of roundings."""
        squares = dict.fromkeys(errors, 0.0)
        for seed in range(draws):
            rounded = evaluate_rounded(call, bits, gradients, statistics, seed)
            squares = {name: sum_ + _error(rounded[name], truth[name]) ** 2 / draws for name, sum_ in squares.items()}
        bounds = {name: allowed[name] + TIMES_ROUNDED * math.sqrt(square) for name, square in squares.items()}
        return [Check(name, error, bounds[name]) for name, error in errors.items()]

    if not bits:
        return compared(0)
    checks = compared(1)
    return checks if all(check.ok for check in checks) else compared(TIMES_DRAWN)


class _Rounded(torch.autograd.Function):
    """Rounding to a number of bits, of the value and of its gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, bits: int, generator: torch.Generator) -> Tensor:
        ctx.bits, ctx.generator = bits, generator
        return round_to(x, bits, generator)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return round_to(grad, ctx.bits, ctx.generator), None, None


def round_to(x: Tensor, bits: int, generator: torch.Generator) -> Tensor:
    """Round ``x`` to a significand of ``bits`` bits on a randomly shifted grid (subtractive dither).

    The error is uniform within half a unit in the last place and independent of ``x``, so that different seeds give
    independent roundings. Values that are exact with ``bits`` bits do not change.
    """
    significand, exponent = torch.frexp(x)
    scaled = significand * 2**bits
    shift = torch.rand(x.shape, generator=generator, dtype=x.dtype, device="cpu").to(x.device)
    dithered = torch.ldexp(((scaled + shift).round() - shift) / 2**bits, exponent)
    return torch.where(scaled.round() == scaled, x, dithered)


def evaluate_rounded(
    call: dict[str, Any], bits: int, gradients: bool = True, statistics: bool = True, seed: int = 0
) -> dict[str, Tensor]:
    """Return :func:`evaluate` of the token loop in float64, with the operands of matrix products rounded to ``bits``.

    ``seed`` determines the roundings; see :func:`round_to`.
    """
    generator = torch.Generator().manual_seed(seed)
    operation = partial(reference.differentiable_forward, operand=lambda t: _Rounded.apply(t, bits, generator))
    register_backend(replace(reference.BACKEND, name="rounded", differentiable=operation, step=None))
    try:
        return evaluate(_converted(call, torch.float64, "cpu"), "rounded", gradients, statistics)
    finally:
        unregister_backend("rounded")


def _error(found: Tensor, truth: Tensor) -> float:
    """Return the root mean square of the difference relative to that of the truth."""
    found, truth = found.double().cpu(), truth.double().cpu()
    return ((found - truth).norm() / truth.norm().clamp_min(torch.finfo(truth.dtype).tiny)).item()


def _converted(call: dict[str, Any], dtype: torch.dtype | None, device: str) -> dict[str, Any]:
    """Return a copy of the call in another dtype, or with None in its own dtypes, on a device."""

    def convert(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.detach().to(device, dtype or t.dtype).requires_grad_(t.requires_grad)

    new = {name: convert(x) if name in PER_TOKEN else x for name, x in call.items()}
    if call.get("initial_state") is not None:
        new["initial_state"] = SwitchingState(*map(convert, call["initial_state"]))  # type: ignore[arg-type]
    if call.get("cu_seqlens") is not None:
        new["cu_seqlens"] = call["cu_seqlens"].to(device)
    return new
