"""The environments of several runs: hardware, versions and commits."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def distinct(environments: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the distinct environments of runs, whatever their dates; earlier runs may be of another commit."""
    found: dict[str, dict[str, Any]] = {}
    for where in environments:
        found.setdefault(json.dumps({key: value for key, value in where.items() if key != "date"}), where)
    return list(found.values())
