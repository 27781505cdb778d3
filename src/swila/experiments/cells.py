"""Numbers as cells of a table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


def count(number: int) -> str:
    """``12,345``."""
    return f"{number:,}"


def fraction(score: float | None) -> str:
    """``0.912``, or nothing for None."""
    return "" if score is None else f"{score:.3f}"


def spread(scores: Sequence[float]) -> str:
    """``0.912`` for one seed, ``0.912 (0.905–0.917)`` for several."""
    if not scores:
        return "unfinished"
    ends = f" ({min(scores):.3f}–{max(scores):.3f})" if len(scores) > 1 else ""
    return f"{fmean(scores):.3f}{ends}"
