"""Files that are complete or absent, their checksums, and JSON files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHUNK = 1 << 22  # bytes read at a time for a checksum


def sha256_of(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    Args:
        path: The file.
        progress: Called with the number of bytes of each part that was read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            digest.update(part)
            if progress is not None:
                progress(len(part))
    return digest.hexdigest()


def write_atomically(path: Path, *parts: bytes | memoryview) -> None:
    """Replace a file with the given bytes: a crash leaves the old file or the new one, never a part."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # other processes may write the same file
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; ValueError names the file if it holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # raised for invalid UTF-8 and for invalid JSON
        raise ValueError(f"{path} must be a JSON file, but cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file atomically."""
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
