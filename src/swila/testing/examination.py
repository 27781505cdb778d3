"""Everything about one backend on one device and dtype: all variants, in batches and packed."""

from __future__ import annotations

from typing import NamedTuple

import torch

from swila.ops.backends import Backend, why_not
from swila.testing.cases import VARIANTS, make_call, problem_of
from swila.testing.checks import Check, check_backend

PACKED = [5, 40, 1, 33]


class Examination(NamedTuple):
    """What was found."""

    calls: int
    checks: list[tuple[str, Check]]  # with the call they belong to, worst first
    crashes: list[tuple[str, str]]
    refusals: list[str]

    @property
    def failures(self) -> int:
        """How many checks and calls went wrong."""
        return sum(not check.ok for _, check in self.checks) + len(self.crashes)


def examine(backend: Backend, device: str, dtype: torch.dtype) -> Examination:
    """Run and check every call that the backend supports."""
    checks: list[tuple[str, Check]] = []
    crashes, refusals = [], []
    calls = 0
    for name, variant in VARIANTS.items():
        for lengths in (None, PACKED):
            where = f"{name}, packed" if lengths else name
            call = make_call(variant, dtype=dtype, device=device, lengths=lengths)
            if reason := why_not(backend, problem_of(call)):
                refusals.append(reason)
                continue
            calls += 1
            try:
                checks += [(where, check) for check in check_backend(call, backend.name)]
            except Exception as crash:
                crashes.append((where, f"{type(crash).__name__}: {crash}"))
    checks.sort(key=lambda item: item[1].severity, reverse=True)
    return Examination(calls, checks, crashes, refusals)
