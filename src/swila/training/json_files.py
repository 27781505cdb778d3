"""JSON files that are complete or absent, and differences between two configurations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeGuard


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; ValueError names the file if it holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # raised for invalid UTF-8 and for invalid JSON
        raise ValueError(f"{path} must be a JSON file, but cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def read_json_if_present(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file does not exist."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return None


def write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    """Replace a file atomically: a crash leaves the old file or the new one, never a part.

    Args:
        path: The file.
        content: What to write.
        indent: Number of spaces of an indentation; None writes everything in one line.
    """
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=indent) + "\n")
    os.replace(temporary, path)


def first_difference(there: Any, here: Any, name: str = "") -> str | None:
    """Describe the first difference of two configurations: ``training.lr is 0.01 there and 0.005 here``."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*there, *(key for key in here if key not in there)]:
            path = f"{name}.{key}" if name else key
            if key not in here or key not in there:
                return f"{path} is only {'there' if key in there else 'here'}"
            if found := first_difference(there[key], here[key], path):
                return found
        return None
    return None if there == here else f"{name} is {there} there and {here} here"


def is_number(value: Any) -> bool:
    """Whether a value is a float or an integer of at most 64 bits; JSON has integers of any size."""
    return isinstance(value, float) or (is_integer(value) and abs(value) < 2**63)


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer, and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)
