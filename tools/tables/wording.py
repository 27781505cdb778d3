"""Words and columns that the tables of several experiments share.

Verdicts on a claim: ``**yes**`` where both sides had the same effort and their seeds are apart; ``yes, with …``, not
bold, where something is less than that; ``**no**``; ``not decided``; ``not run``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, Literal

CLAIM = ("where", "the paper", "here")
NO, NOT_RUN = "**no**", "not run"


def yes(reservations: Sequence[str] = ()) -> str:
    """``**yes**``, or ``yes, with …`` if there are reservations."""
    return f"yes, with {listed(reservations)}" if reservations else "**yes**"


def not_decided(reasons: Sequence[str]) -> str:
    """Neither yes nor no, and why."""
    return f"not decided, with {listed(reasons)}"


def listed(words: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


Standing = Literal["above", "higher, one seed", "overlap", "not above"]


def standing(row: dict[str, Any], baseline: dict[str, Any]) -> Standing:
    """How the seeds of a row stand to a baseline's.

    ``above`` needs two seeds on both sides, the worst above the baseline's best. With a single seed on a side the
    spread is unknown, and only the means are compared.
    """
    higher = fmean(row["scores"]) > fmean(baseline["scores"])
    if min(len(row["scores"]), len(baseline["scores"])) < 2:
        return "higher, one seed" if higher else "not above"
    if min(row["scores"]) > max(baseline["scores"]):
        return "above"
    return "overlap" if max(row["scores"]) >= min(baseline["scores"]) else "not above"


def of_seeds(scores: list[float]) -> str:
    """``0.912 (0.905–0.917; ×3)``."""
    if len(scores) == 1:
        return f"{scores[0]:.3f} (×1)"
    return f"{fmean(scores):.3f} ({min(scores):.3f}–{max(scores):.3f}; ×{len(scores)})"
