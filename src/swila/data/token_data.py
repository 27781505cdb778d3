"""Reading of token directories: the stream of all documents of a split, memory-mapped."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from swila.data.files import sha256_of
from swila.data.manifest import BOUND_BYTES, ITEM_BYTES, TOKENIZER, Manifest, ShardManifest, read_manifest


class TokenData:
    """A directory written by ``swila data prepare``.

    Opening it reads the manifest and checks that every file exists with the right size, which takes no time on large
    data; :meth:`verify` reads all of it.

    Args:
        path: The directory.

    Attributes:
        path: The directory.
        manifest: Counts, checksums, tokenizer and sources.
        fingerprint: Hexadecimal digest of what determines the tokens: tokenizer, special tokens, dtype and the
            checksums of all shards.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest: Manifest = read_manifest(self.path)
        self.fingerprint: str = self.manifest.fingerprint()
        for file, size, _ in self._files():
            if not file.is_file():
                raise ValueError(f"{file} is missing: prepare the data again")
            if size is not None and (found := file.stat().st_size) != size:
                raise ValueError(
                    f"{file} must have {size:,} bytes, got {found:,}: it is corrupt. Prepare the data again"
                )

    @property
    def tokenizer_file(self) -> Path:
        """Copy of the tokenizer that was used."""
        return self.path / TOKENIZER

    @property
    def bytes(self) -> int:
        """Size of all files that the manifest names."""
        return sum(file.stat().st_size for file, _, _ in self._files())

    def split(self, name: str) -> TokenSplit | None:
        """Return the split ``"train"`` or ``"validation"``, None if it has no documents."""
        return TokenSplit(self, name) if name in self.manifest.splits else None

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Recompute the checksums of all files; ValueError names the file that is corrupt.

        Args:
            progress: Called with the number of bytes read so far and the number of all bytes.
        """
        done, total = 0, self.bytes

        def read(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, total)

        for file, _, expected in self._files():
            if sha256_of(file, read) != expected:
                raise ValueError(f"{file} is corrupt: its SHA-256 is not that of the manifest. Prepare the data again")

    def _files(self) -> list[tuple[Path, int | None, str]]:
        """Return path, size if known, and checksum of every file."""
        files: list[tuple[Path, int | None, str]] = [(self.tokenizer_file, None, self.manifest.tokenizer_sha256)]
        item = ITEM_BYTES[self.manifest.dtype]
        for split in self.manifest.splits.values():
            for shard in split.shards:
                files.append((self.path / shard.tokens_file, shard.tokens * item, shard.tokens_sha256))
                bounds = (shard.documents + 1) * BOUND_BYTES
                files.append((self.path / shard.bounds_file, bounds, shard.bounds_sha256))
        return files


class TokenSplit:
    """One split of a token directory: the stream of its documents, one after another.

    Args:
        data: The directory.
        name: ``"train"`` or ``"validation"``.

    Attributes:
        name: Name of the split.
        tokens: Number of tokens.
        documents: Number of documents.
        path: The directory.
        fingerprint: That of the directory.
    """

    def __init__(self, data: TokenData, name: str) -> None:
        split = data.manifest.splits[name]
        self.name, self.tokens, self.documents = name, split.tokens, split.documents
        self.path, self.fingerprint = data.path, data.fingerprint
        self.dtype = np.dtype(data.manifest.dtype).newbyteorder("<")
        self._shards: list[ShardManifest] = split.shards
        self._starts = np.cumsum([0, *(shard.tokens for shard in split.shards)])
        self._maps: dict[int, np.ndarray] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the files again: pickling a map would copy its content.
        return {**{key: value for key, value in vars(self).items() if key != "bounds"}, "_maps": {}}

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return a copy of the tokens ``[start, stop)`` of the stream, across shards."""
        if not 0 <= start <= stop <= self.tokens:
            raise ValueError(
                f"start and stop must be within the {self.tokens} tokens of {self.name}, got {start}, {stop}"
            )
        result = np.empty(stop - start, dtype=self.dtype)
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        done = 0
        while done < len(result):
            offset = start + done - int(self._starts[number])
            part = self._shard(number)[offset : offset + len(result) - done]
            result[done : done + len(part)] = part
            done, number = done + len(part), number + 1
        return result

    @cached_property
    def bounds(self) -> np.ndarray:
        """Bounds of the documents in the stream: int64 ``[documents + 1]``, read on first use."""
        bounds = np.zeros(self.documents + 1, dtype=np.int64)
        document = 0
        for shard, start in zip(self._shards, self._starts, strict=False):
            ends = np.fromfile(self.path / shard.bounds_file, dtype="<i8")[1:]
            bounds[document + 1 : document + 1 + len(ends)] = ends + start
            document += len(ends)
        return bounds

    def _shard(self, number: int) -> np.ndarray:
        if number not in self._maps:
            file = self.path / self._shards[number].tokens_file
            self._maps[number] = np.memmap(file, dtype=self.dtype, mode="r")
        return self._maps[number]
