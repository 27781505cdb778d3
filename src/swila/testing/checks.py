"""Is a backend right? Everything it returns, and every gradient, against the specification in float64.

How far off it may be is not a number made up: the token loop itself, run on the same inputs in the same precision, is
some way from float64, and a backend may be a few times that far, since it adds up in another order; where the loop
happens to be closer than chance, a floor of some roundings of the recurrence's own arithmetic takes its place. A
backend on matrix units is measured by the loop with their operands rounded as they are there, and may be twice as far
off. Over a long sequence without decay roundings grow along few directions, and the error of one run is then close to
one random number, which may happen to be near zero: where one rounding of the loop is not far enough off, the measure
is the root mean square over several independent ones.
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
TIMES_DRAWN = 4  # independent roundings at most; with one, the bound was seen ten times too tight
ROUNDINGS = 64.0  # a long sum in another order; seen: up to 25 where the token loop happens to round well


class Check(NamedTuple):
    """One returned tensor or gradient: its error relative to its size, and the most it may be."""

    name: str
    error: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Whether the error is within bounds; not so for NaN."""
        return self.error <= self.allowed

    @property
    def severity(self) -> float:
        """The error as a share of what is allowed, infinite for NaN."""
        return math.inf if math.isnan(self.error) else self.error / self.allowed

    def __str__(self) -> str:
        return f"{self.name} off by {self.error:.1e}, {self.allowed:.1e} allowed"


def leaves(call: dict[str, Any]) -> dict[str, Tensor]:
    """The differentiable tensors of a call, by name."""
    state = call.get("initial_state") or (None, None, None)
    tensors = {name: call.get(name) for name in PER_TOKEN}
    tensors |= {f"initial_{name}": part for name, part in zip(STATE, state, strict=True)}
    return {name: t for name, t in tensors.items() if t is not None}


def results(output: SwitchingOutput) -> dict[str, Tensor]:
    """Everything the operation returned, by name."""
    parts: dict[str, Tensor | None] = {"output": output.output}
    parts |= {} if output.state is None else output.state._asdict()
    parts |= {} if output.stats is None else output.stats._asdict()
    return {name: t for name, t in parts.items() if t is not None}


def evaluate(call: dict[str, Any], backend: str, gradients: bool = True, statistics: bool = True) -> dict[str, Tensor]:
    """All results of a call and, under ``d name``, the gradients of a fixed random combination of them."""
    found = results(switching_delta_rule(**call, return_state=True, routing_stats=statistics, backend=backend))
    inputs = {name: t for name, t in leaves(call).items() if t.requires_grad}
    if gradients:
        generator = torch.Generator().manual_seed(1)
        # Multiples of 1/64 below 2 are the same numbers in every dtype.
        weights = [
            torch.randint(-127, 128, t.shape, generator=generator, device="cpu").to(t) / 64 for t in found.values()
        ]
        grads = torch.autograd.grad(list(found.values()), list(inputs.values()), weights)
        found |= {f"d {name}": grad for name, grad in zip(inputs, grads, strict=True)}
    return {name: t.detach() for name, t in found.items()}


def exact(call: dict[str, Any], gradients: bool = True, statistics: bool = True) -> dict[str, Tensor]:
    """The specification of a call: the token loop in float64 on the CPU."""
    return evaluate(_converted(call, torch.float64, "cpu"), "reference", gradients, statistics)


def check_backend(call: dict[str, Any], backend: str, gradients: bool = True, statistics: bool = True) -> list[Check]:
    """Compare a backend with the specification; every entry says how far off it is and how far it may be.

    ``statistics=False`` leaves out the statistics of the routing: kernels take another path without them.
    """
    truth = exact(call, gradients, statistics)
    dtype, full = call["q"].dtype, torch.finfo(torch.float32).eps
    yardstick, scale = evaluate(_converted(call, None, "cpu"), "reference", gradients, statistics), 1.0
    if dtype == torch.float64:  # nothing is more precise: how far float32 is off tells how roundings grow
        yardstick = evaluate(_converted(call, torch.float32, "cpu"), "reference", gradients, statistics)
        scale = torch.finfo(torch.float64).eps / full
        full = torch.finfo(torch.float64).eps
    allowed = {
        name: TIMES_REFERENCE * scale * _error(t, truth[name]) + ROUNDINGS * full for name, t in yardstick.items()
    }
    errors = {name: _error(t, truth[name]) for name, t in evaluate(call, backend, gradients, statistics).items()}
    bits = get_backend(backend).operand_bits(dtype) or 0

    def compared(draws: int) -> list[Check]:
        """The checks, with the bound of so many roundings."""
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
    """A number with so many bits in its significand, and a gradient likewise."""

    @staticmethod
    def forward(ctx, x: Tensor, bits: int, generator: torch.Generator) -> Tensor:
        ctx.bits, ctx.generator = bits, generator
        return round_to(x, bits, generator)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return round_to(grad, ctx.bits, ctx.generator), None, None


def round_to(x: Tensor, bits: int, generator: torch.Generator) -> Tensor:
    """``x`` rounded to a significand of ``bits`` bits on a grid shifted at random (subtractive dither).

    The error is uniform within half a unit in the last place and independent of ``x``, so that different seeds give
    independent roundings. What has no more bits than these stays as it is.
    """
    significand, exponent = torch.frexp(x)
    scaled = significand * 2**bits
    shift = torch.rand(x.shape, generator=generator, dtype=x.dtype, device="cpu").to(x.device)
    dithered = torch.ldexp(((scaled + shift).round() - shift) / 2**bits, exponent)
    return torch.where(scaled.round() == scaled, x, dithered)


def evaluate_rounded(
    call: dict[str, Any], bits: int, gradients: bool = True, statistics: bool = True, seed: int = 0
) -> dict[str, Tensor]:
    """As :func:`evaluate`, by the token loop in float64 with the operands of matrix products rounded to ``bits``.

    Roundings are drawn with ``seed``; see :func:`round_to`.
    """
    generator = torch.Generator().manual_seed(seed)
    operation = partial(reference.differentiable_forward, operand=lambda t: _Rounded.apply(t, bits, generator))
    register_backend(replace(reference.BACKEND, name="rounded", differentiable=operation, step=None))
    try:
        return evaluate(_converted(call, torch.float64, "cpu"), "rounded", gradients, statistics)
    finally:
        unregister_backend("rounded")


def _error(found: Tensor, truth: Tensor) -> float:
    """Root mean square of the difference over that of the truth."""
    found, truth = found.double().cpu(), truth.double().cpu()
    return ((found - truth).norm() / truth.norm().clamp_min(torch.finfo(truth.dtype).tiny)).item()


def _converted(call: dict[str, Any], dtype: torch.dtype | None, device: str) -> dict[str, Any]:
    """A copy of the call in a full precision, or with None in the dtypes it has."""

    def convert(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.detach().to(device, dtype or t.dtype).requires_grad_(t.requires_grad)

    new = {name: convert(x) if name in PER_TOKEN else x for name, x in call.items()}
    if call.get("initial_state") is not None:
        new["initial_state"] = SwitchingState(*map(convert, call["initial_state"]))  # type: ignore[arg-type]
    if call.get("cu_seqlens") is not None:
        new["cu_seqlens"] = call["cu_seqlens"].to(device)
    return new
