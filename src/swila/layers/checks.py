"""Checks of a layer's options. Each error names the option, the value given and the values allowed."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TypeGuard


def check_flags(**flags: object) -> None:
    """Raise ValueError unless every option is True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def check_counts(**counts: object) -> None:
    """Raise ValueError unless every option is an integer of at least 1."""
    for name, value in counts.items():
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def check_numbers(**numbers: object) -> None:
    """Raise ValueError unless every option is a finite number."""
    for name, value in numbers.items():
        if not _is_finite(value):
            raise ValueError(f"{name} must be a finite number, got {value!r}")


def check_weights(**weights: object) -> None:
    """Raise ValueError unless every option is a finite number of at least 0."""
    for name, value in weights.items():
        if not _is_finite(value) or value < 0:
            raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
