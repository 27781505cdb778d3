"""Writing of shards: documents appended to files that can be cut back to an earlier length."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from swila.data.files import sha256_of, write_atomically
from swila.data.manifest import TOKENIZER, Manifest, ShardManifest, SplitManifest, dtype_of

SHARD_TOKENS = 1 << 26


class SplitWriter:
    """Writes the documents of one split into shards.

    A shard is closed at the end of the document with which it reaches ``shard_tokens`` tokens. :meth:`state` describes
    what has been written; a writer made with that state continues there, whatever was written afterwards.

    Args:
        directory: Where the shards are written.
        name: Name of the split.
        dtype: dtype of the tokens.
        shard_tokens: Number of tokens that closes a shard.
        state: Result of :meth:`state`, None for an empty split.
    """

    def __init__(
        self, directory: Path, name: str, dtype: str, shard_tokens: int, state: Mapping[str, Any] | None = None
    ) -> None:
        self.directory, self.name, self.shard_tokens = directory, name, shard_tokens
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self._closed = [ShardManifest(**shard) for shard in state["closed"]] if state else []
        self._open: _OpenShard | None = None
        if state and state["open"]:
            self._open = self._opened(state["open"]["tokens"], state["open"]["documents"])

    @property
    def tokens(self) -> int:
        """Number of tokens written."""
        return sum(shard.tokens for shard in self._closed) + (self._open.tokens if self._open else 0)

    @property
    def documents(self) -> int:
        """Number of documents written."""
        return sum(shard.documents for shard in self._closed) + (self._open.documents if self._open else 0)

    def append(self, tokens: np.ndarray) -> None:
        """Append a document; one without tokens is an error."""
        if len(tokens) == 0:
            raise ValueError("tokens must have at least one token, got none")
        if self._open is None:
            self._open = self._opened(0, 0)
        self._open.append(np.ascontiguousarray(tokens, dtype=self.dtype))
        if self._open.tokens >= self.shard_tokens:
            self._close()

    def state(self) -> dict[str, Any]:
        """Return what has been written, after it is on disk."""
        if self._open is not None:
            self._open.sync()
        counts = {"tokens": self._open.tokens, "documents": self._open.documents} if self._open else None
        return {"closed": [asdict(shard) for shard in self._closed], "open": counts}

    def finish(self) -> SplitManifest:
        """Close the last shard and return the description of the split."""
        if self._open is not None:
            self._close()
        return SplitManifest(self.tokens, self.documents, list(self._closed))

    def _opened(self, tokens: int, documents: int) -> _OpenShard:
        name = f"{self.name}-{len(self._closed):05d}"
        return _OpenShard(self.directory, name, self.dtype.itemsize, tokens, documents)

    def _close(self) -> None:
        assert self._open is not None
        self._closed.append(self._open.close())
        self._open = None


class _OpenShard:
    """The files of a shard that grows, and their checksums so far."""

    def __init__(self, directory: Path, name: str, itemsize: int, tokens: int, documents: int) -> None:
        empty = ShardManifest(name, tokens, documents, "", "")
        self.name, self.tokens, self.documents = name, tokens, documents
        self._tokens = _GrowingFile(directory / empty.tokens_file, tokens * itemsize)
        self._bounds = _GrowingFile(directory / empty.bounds_file, (documents + 1) * 8 if documents else 0)
        if not documents:
            self._bounds.write(np.zeros(1, dtype="<i8").tobytes())

    def append(self, tokens: np.ndarray) -> None:
        self._tokens.write(tokens.tobytes())
        self.tokens += len(tokens)
        self.documents += 1
        self._bounds.write(np.array([self.tokens], dtype="<i8").tobytes())

    def sync(self) -> None:
        self._tokens.sync()
        self._bounds.sync()

    def close(self) -> ShardManifest:
        return ShardManifest(self.name, self.tokens, self.documents, self._tokens.close(), self._bounds.close())


class _GrowingFile:
    """A file that is written at its end, with its checksum; what it holds beyond ``length`` is cut off."""

    def __init__(self, path: Path, length: int) -> None:
        self._digest = hashlib.sha256()
        if length:
            with path.open("r+b") as file:
                found = file.seek(0, os.SEEK_END)
                if found < length:
                    raise ValueError(
                        f"{path} must have at least {length:,} bytes, got {found:,}: start again with --fresh"
                    )
                file.truncate(length)
            with path.open("rb") as file:
                while part := file.read(1 << 22):
                    self._digest.update(part)
        self._file: BinaryIO = path.open("ab" if length else "wb", buffering=1 << 20)

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> str:
        self.sync()
        self._file.close()
        return self._digest.hexdigest()


def write_tokens(
    directory: str | Path,
    splits: Mapping[Literal["train", "validation"], Iterable[Iterable[int]]],
    tokenizer_file: str | Path,
    vocab_size: int,
    *,
    shard_tokens: int = SHARD_TOKENS,
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    add_bos: bool = False,
    add_eos: bool = False,
) -> Manifest:
    """Write documents that are tokenised already as a token directory, and return its manifest.

    Args:
        directory: A directory; it is made if it does not exist.
        splits: The documents of each split, each with at least one token, special tokens included.
        tokenizer_file: The tokenizer.json that made the tokens; it is copied.
        vocab_size: Largest id that the tokenizer can produce, plus one.
        shard_tokens: Number of tokens that closes a shard.
        bos_token_id: Id of the token that begins a text, if the tokenizer has one.
        eos_token_id: Id of the token that ends a text, if the tokenizer has one.
        add_bos: Whether each document begins with the BOS token.
        add_eos: Whether each document ends with the EOS token.
    """
    directory, tokenizer_file = Path(directory), Path(tokenizer_file)
    directory.mkdir(parents=True, exist_ok=True)
    dtype = dtype_of(vocab_size)
    written: dict[str, SplitManifest] = {}
    for name, documents in splits.items():
        writer = SplitWriter(directory, name, dtype, shard_tokens)
        for document in documents:
            tokens = np.asarray(document if isinstance(document, np.ndarray) else list(document), dtype=np.int64)
            if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
                raise ValueError(f"splits must hold tokens below vocab_size {vocab_size}, got {tokens.max()}")
            writer.append(tokens)
        if (split := writer.finish()).documents:
            written[name] = split
    write_atomically(directory / TOKENIZER, tokenizer_file.read_bytes())
    manifest = Manifest(
        vocab_size=vocab_size,
        dtype=dtype,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        add_bos=add_bos,
        add_eos=add_eos,
        tokenizer=str(tokenizer_file),
        tokenizer_sha256=sha256_of(directory / TOKENIZER),
        splits=written,
    )
    manifest.write(directory)
    return manifest
