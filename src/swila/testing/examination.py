"""Checks of one backend on one device and dtype: all variants, dense and packed, with and without statistics."""

from __future__ import annotations

from typing import NamedTuple

import torch

from swila.ops.backends import Backend, why_not
from swila.testing.cases import VARIANTS, Shape, make_call, problem_of
from swila.testing.checks import Check, check_backend

PACKED = [5, 40, 1, 33]
# Kernels take different paths for packed sequences, without statistics and for many mixtures.
CASES: tuple[tuple[str, Shape, list[int] | None, bool], ...] = (
    ("", Shape(), None, True),
    (", packed", Shape(), PACKED, True),
    (", without statistics", Shape(T=50), None, False),
    (", eight mixtures without statistics", Shape(T=50, J=8), None, False),
)


class Examination(NamedTuple):
    """Results of :func:`examine`.

    Attributes:
        calls: Number of calls.
        checks: Checks with the call they belong to, worst first.
        crashes: Calls that raised an exception, with the exception.
        refusals: Reasons why the backend does not support other calls.
    """

    calls: int
    checks: list[tuple[str, Check]]
    crashes: list[tuple[str, str]]
    refusals: list[str]

    @property
    def failures(self) -> int:
        """Number of failed checks and calls."""
        return sum(not check.ok for _, check in self.checks) + len(self.crashes)


def examine(backend: Backend, device: str, dtype: torch.dtype) -> Examination:
    """Run and check all calls that the backend supports."""
    checks: list[tuple[str, Check]] = []
    crashes, refusals = [], []
    calls = 0
    for name, variant in VARIANTS.items():
        for what, shape, lengths, statistics in CASES:
            where = name + what
            call = make_call(variant, shape, dtype=dtype, device=device, lengths=lengths)
            if reason := why_not(backend, problem_of(call)):
                refusals.append(reason)
                continue
            calls += 1
            try:
                checks += [(where, check) for check in check_backend(call, backend.name, statistics=statistics)]
            except Exception as crash:
                crashes.append((where, f"{type(crash).__name__}: {crash}"))
    checks.sort(key=lambda item: item[1].severity, reverse=True)
    return Examination(calls, checks, crashes, refusals)
