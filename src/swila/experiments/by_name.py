"""Lookup by name, with an error that lists the names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def by_name(what: str, name: str, among: Mapping[str, T]) -> T:
    """``among[name]``; ``what`` is called so in the error."""
    if name not in among:
        raise ValueError(f"{what} must be one of {', '.join(among)}, got {name!r}")
    return among[name]
