"""What a source of documents is, whatever it reads."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Protocol


class Broken(str):
    """Why a document cannot be read, in place of its text."""


class Reader(Protocol):
    """Iterates over the texts of the documents of a source.

    Attributes:
        bytes_read: Number of bytes of the source that have been read, for the estimate of the remaining time.
    """

    bytes_read: int

    def __iter__(self) -> Iterator[str | None]:
        """Iterate over the documents that are left; None is one without text, :class:`Broken` one to leave out."""
        ...

    def position(self) -> dict[str, Any]:
        """Return where to continue after the last document that was returned, as JSON."""
        ...


class Source(Protocol):
    """A file or a data set with documents.

    Attributes:
        name: How messages name the source.
        size: Number of bytes, None if it is not known.
    """

    @property
    def name(self) -> str:
        """How messages name the source."""
        ...

    @property
    def size(self) -> int | None:
        """Number of bytes, None if it is not known."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what identifies the source in the manifest."""
        ...

    def open(self, position: dict[str, Any] | None) -> Reader:
        """Return a reader from a position, None for the beginning."""
        ...


def require(module: str) -> ModuleType:
    """Return an optional package; ValueError names the extra to install if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ValueError(f"this needs the package {name} ({error}). Try: pip install 'swila[data]'") from None


def checked_text(value: Any, column: str, where: str) -> str | None:
    """Return a value of a column if it is a text or None; ValueError otherwise."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{where}: column {column!r} must be text, got {type(value).__name__}")
    return value


def missing_column(column: str, found: list[str], where: str) -> ValueError:
    """Return the error for a column that does not exist."""
    return ValueError(f"{where}: no column {column!r}, choose one of these with --column: {', '.join(found) or 'none'}")
