"""Documents in text, JSON lines and parquet files."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from swila.data.source import Broken, checked_text, missing_column, require

DocumentForm = Literal["file", "blank-lines", "lines"]
DOCUMENT_FORMS: tuple[DocumentForm, ...] = ("file", "blank-lines", "lines")
TEXT = (".txt", ".text")
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = (".parquet",)
LINES_PER_BROKEN = 1000
FORMATS = "text (.txt), JSON lines (.jsonl), both also compressed (.gz), and parquet (.parquet)"
_BINARY = {
    ".arrow",
    ".bin",
    ".bz2",
    ".csv",
    ".lz4",
    ".model",
    ".npy",
    ".pt",
    ".safetensors",
    ".tar",
    ".xz",
    ".zip",
    ".zst",
}


class _Record(NamedTuple):
    """A document, where to continue after it, how many bytes were read up to it, and why its line cannot be read."""

    text: str | None
    after: int
    bytes_read: int
    broken: str | None = None


class FileReader:
    """Reader of a file whose position is a number of lines, rows or documents, as the format has it.

    Lines that cannot be read are left out while they are at most one in a thousand of the lines so far: large crawls
    have some, and a file of another format has many.

    Args:
        records: The documents that are left.
        start: Position at which they begin.
        broken: Number of lines before it that could not be read.
    """

    def __init__(self, records: Iterator[_Record], start: int, broken: int = 0) -> None:
        self._records, self._after, self._broken, self.bytes_read = records, start, broken, 0

    def __iter__(self) -> Iterator[str | None]:
        """Iterate over the documents that are left."""
        for record in self._records:
            self._after, self.bytes_read = record.after, record.bytes_read
            if record.broken is None:
                yield record.text
                continue
            self._broken += 1
            if self._broken * LINES_PER_BROKEN > record.after:
                raise ValueError(record.broken)
            yield Broken(record.broken)

    def position(self) -> dict[str, Any]:
        """Return where to continue."""
        return {"after": self._after, "broken": self._broken}


@dataclass(frozen=True)
class FileSource:
    """A file; its suffix determines the format, and a suffix that is not known means text.

    Args:
        path: The file.
        column: Field or column with the text, for JSON lines and parquet.
        documents: What a document is in a text file: the file, a part between blank lines, or a line.
    """

    path: Path
    column: str
    documents: DocumentForm

    def __post_init__(self) -> None:
        if self.path.suffix.lower() in _BINARY:
            raise ValueError(f"{self.path} has a format that cannot be read; these can: {FORMATS}")
        if self.path.stat().st_size == 0:
            raise ValueError(f"{self.path} is empty")

    @property
    def name(self) -> str:
        """Path of the file."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Size of the file."""
        return self.path.stat().st_size

    def describe(self) -> dict[str, Any]:
        """Return path and size."""
        return {"path": self.path.as_posix(), "bytes": self.size}

    def open(self, position: dict[str, Any] | None) -> FileReader:
        """Return a reader from a position."""
        start, broken = (position["after"], position.get("broken", 0)) if position else (0, 0)
        suffix = _suffix(self.path)
        if suffix in PARQUET:
            return FileReader(self._rows(start), start)
        if suffix in (*JSON_LINES, ".json"):
            return FileReader(self._json_lines(start), start, broken)
        forms = {"file": self._whole, "blank-lines": self._parts, "lines": self._lines}
        return FileReader(forms[self.documents](start), start)

    def _whole(self, start: int) -> Iterator[_Record]:
        if start == 0:
            with self._opened() as (file, _):
                yield _Record(_decoded(self._all(file), self.name), 1, self.size)

    def _all(self, file: io.BufferedIOBase) -> bytes:
        try:
            return file.read()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{self.path} is a damaged gzip file: {error}") from None

    def _parts(self, start: int) -> Iterator[_Record]:
        """Yield the parts between blank lines."""
        part: list[str] = []
        number = read = 0
        for number, line, read in self._numbered(start):
            text = _decoded(line, f"{self.path}, line {number}")
            if text.strip():
                part.append(text)
            elif part:
                yield _Record("".join(part).rstrip("\r\n"), number, read)
                part = []
        if part:
            yield _Record("".join(part).rstrip("\r\n"), number, read)

    def _lines(self, start: int) -> Iterator[_Record]:
        for number, line, read in self._numbered(start):
            yield _Record(_decoded(line, f"{self.path}, line {number}").rstrip("\r\n"), number, read)

    def _json_lines(self, start: int) -> Iterator[_Record]:
        for number, line, read in self._numbered(start):
            if not line.strip():
                continue
            where = f"{self.path}, line {number}"
            try:
                row = json.loads(_decoded(line, where))
            except json.JSONDecodeError as error:
                yield _Record(None, number, read, f"{where} is not JSON: {error.msg} (column {error.colno})")
                continue
            except ValueError as error:  # not UTF-8
                yield _Record(None, number, read, str(error))
                continue
            if not isinstance(row, dict):
                raise ValueError(f"{where} must be a JSON object, got {type(row).__name__}")
            if self.column not in row:
                raise missing_column(self.column, list(row), where)
            yield _Record(checked_text(row[self.column], self.column, where), number, read)

    def _rows(self, start: int) -> Iterator[_Record]:
        arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
        try:
            with parquet.ParquetFile(self.path) as file:
                names, rows = file.schema_arrow.names, file.metadata.num_rows
                if self.column not in names:
                    raise missing_column(self.column, names, self.name)
                after = 0
                for group in range(file.num_row_groups):
                    count = file.metadata.row_group(group).num_rows
                    if after + count <= start:
                        after += count
                        continue
                    for batch in file.iter_batches(1024, row_groups=[group], columns=[self.column]):
                        for value in batch.column(0).to_pylist():
                            after += 1
                            if after > start:
                                text = checked_text(value, self.column, f"{self.path}, row {after}")
                                yield _Record(text, after, self.size * after // rows)
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, OSError) as error:
            raise ValueError(f"{self.path} is not a readable parquet file: {error}") from None

    def _numbered(self, start: int) -> Iterator[tuple[int, bytes, int]]:
        """Yield the lines after the first ``start``: number from 1, content, and bytes of the file read."""
        with self._opened() as (file, raw):
            number = 0
            try:
                for line in file:
                    number += 1
                    if number > start:
                        yield number, line, raw.tell()
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(f"{self.path}, after line {number}, is a damaged gzip file: {error}") from None

    def _opened(self) -> _Opened:
        return _Opened(self.path)


class _Opened:
    """A file that is decompressed if its name says so, with the file below it."""

    def __init__(self, path: Path) -> None:
        self._raw: io.BufferedReader = path.open("rb")
        self._file: io.BufferedIOBase = self._raw
        if path.suffix.lower() == ".gz":
            self._file = io.BufferedReader(gzip.GzipFile(fileobj=self._raw), 1 << 20)

    def __enter__(self) -> tuple[io.BufferedIOBase, io.BufferedReader]:
        return self._file, self._raw

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._raw.close()


def is_known(path: Path) -> bool:
    """Whether a file in a folder is a source by its suffix."""
    if path.suffix.lower() == ".gz":
        return _suffix(path) in (*TEXT, *JSON_LINES)
    return _suffix(path) in (*TEXT, *JSON_LINES, *PARQUET)


def _suffix(path: Path) -> str:
    """Return the suffix in lower case, without that of the compression."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8: byte {content[error.start]:#04x} at {error.start}") from None
