"""Words and columns that the tables of several experiments share.

Verdicts on a claim: ``**yes**`` if both sides had the same effort and their seeds do not overlap; ``yes, with …``, not
bold, if something falls short of that; ``**no**``; ``not decided``; ``not run``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, Literal

CLAIM = ("where", "the paper", "here")
APART = "Seeds are apart if every seed of one side is above every seed of the other, with at least two seeds each."
NO, NOT_RUN = "**no**", "not run"


def yes(reservations: Sequence[str] = ()) -> str:
    """Return ``**yes**``, or ``yes, with …`` if there are reservations."""
    return f"yes, with {listed(reservations)}" if reservations else "**yes**"


def not_decided(reasons: Sequence[str]) -> str:
    """Return ``not decided, with …`` and the reasons."""
    return f"not decided, with {listed(reasons)}"


def listed(words: Iterable[str]) -> str:
    """Join words as ``a``, ``a and b`` or ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def span(numbers: Iterable[float], form: str) -> str:
    """Format numbers as ``0.54–0.55``: smallest and largest, or one number if they read the same."""
    found = sorted(numbers)
    low, high = f"{found[0]:{form}}", f"{found[-1]:{form}}"
    return low if low == high else f"{low}–{high}"


Standing = Literal["above", "higher, one seed", "overlap", "not above"]


def standing(row: dict[str, Any], baseline: dict[str, Any]) -> Standing:
    """Compare the seeds of a row with a baseline's.

    ``above`` needs two seeds on both sides, and the lowest above the baseline's highest. With a single seed on one side
    the spread is unknown, and only the means are compared.
    """
    higher = fmean(row["scores"]) > fmean(baseline["scores"])
    if min(len(row["scores"]), len(baseline["scores"])) < 2:
        return "higher, one seed" if higher else "not above"
    if min(row["scores"]) > max(baseline["scores"]):
        return "above"
    return "overlap" if max(row["scores"]) >= min(baseline["scores"]) else "not above"


def of_seeds(scores: list[float]) -> str:
    """Format scores as ``0.912 (0.905–0.917; ×3)``: mean, lowest, highest and number."""
    if len(scores) == 1:
        return f"{scores[0]:.3f} (×1)"
    return f"{fmean(scores):.3f} ({min(scores):.3f}–{max(scores):.3f}; ×{len(scores)})"
