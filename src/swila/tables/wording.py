"""Words and columns that the tables of several experiments share."""

from __future__ import annotations

from statistics import fmean
from typing import Any

CLAIM = ("the paper", "here")


def verdict(so: bool) -> str:
    """In a word."""
    return "yes" if so else "no"


def apart(row: dict[str, Any], rival: dict[str, Any]) -> bool:
    """Whether the worst seed is above the rival's best."""
    return min(row["scores"]) > max(rival["scores"])


def of_seeds(scores: list[float]) -> str:
    """``0.912 (0.905–0.917; ×3)``."""
    if len(scores) == 1:
        return f"{scores[0]:.3f} (×1)"
    return f"{fmean(scores):.3f} ({min(scores):.3f}–{max(scores):.3f}; ×{len(scores)})"
