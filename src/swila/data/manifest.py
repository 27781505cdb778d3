"""The manifest of a token directory: what was tokenised, how, and into which files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from swila.data.files import read_json, write_json

FORMAT = 1
MANIFEST = "manifest.json"
PROGRESS = "progress.json"
TOKENIZER = "tokenizer.json"
SPLITS = ("train", "validation")
ITEM_BYTES = {"uint16": 2, "uint32": 4}
BOUND_BYTES = 8


@dataclass(frozen=True)
class ShardManifest:
    """One shard: a file of tokens and a file of document bounds.

    Attributes:
        name: Name of the shard, such as ``train-00000``.
        tokens: Number of tokens.
        documents: Number of documents.
        tokens_sha256: Checksum of the file of tokens.
        bounds_sha256: Checksum of the file of bounds.
    """

    name: str
    tokens: int
    documents: int
    tokens_sha256: str
    bounds_sha256: str

    @property
    def tokens_file(self) -> str:
        """Name of the file of tokens, little endian."""
        return f"{self.name}.bin"

    @property
    def bounds_file(self) -> str:
        """Name of the file of bounds: int64 [documents + 1], positions in the shard, the first is 0."""
        return f"{self.name}.bounds.bin"


@dataclass(frozen=True)
class SplitManifest:
    """One split.

    Attributes:
        tokens: Number of tokens of all shards.
        documents: Number of documents of all shards.
        shards: The shards in the order of the stream.
    """

    tokens: int
    documents: int
    shards: list[ShardManifest]


@dataclass(frozen=True)
class Manifest:
    """What a token directory holds.

    Attributes:
        vocab_size: Largest id that the tokenizer can produce, plus one; added tokens count.
        dtype: dtype of the tokens in the files.
        bos_token_id: Id of the token that begins a text, None if the tokenizer has none.
        eos_token_id: Id of the token that ends a text, None if the tokenizer has none.
        add_bos: Whether each document begins with the BOS token.
        add_eos: Whether each document ends with the EOS token.
        tokenizer: Path or name of the tokenizer as it was given.
        tokenizer_sha256: Checksum of the file ``tokenizer.json``.
        splits: The splits that have documents, by name.
        sources: The files and data sets that were read, with their sizes.
        options: The other options that determine the result.
        skipped: Numbers of documents that were left out, by reason.
    """

    vocab_size: int
    dtype: Literal["uint16", "uint32"]
    bos_token_id: int | None
    eos_token_id: int | None
    add_bos: bool
    add_eos: bool
    tokenizer: str
    tokenizer_sha256: str
    splits: Mapping[str, SplitManifest]
    sources: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Return a digest of what determines the tokens; the place of the directory does not count."""
        content = {
            "tokenizer": self.tokenizer_sha256,
            "special": [self.bos_token_id, self.eos_token_id, self.add_bos, self.add_eos],
            "dtype": self.dtype,
            "splits": {
                name: [[shard.tokens_sha256, shard.bounds_sha256] for shard in split.shards]
                for name, split in sorted(self.splits.items())
            },
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def write(self, directory: Path) -> None:
        """Write the manifest into a directory atomically."""
        write_json(directory / MANIFEST, {"format": FORMAT, **asdict(self)})


def dtype_of(vocab_size: int) -> Literal["uint16", "uint32"]:
    """Return the smallest dtype that holds the ids of a vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a directory; ValueError if there is none, or if it is not valid."""
    path = directory / MANIFEST
    try:
        content = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        if (directory / PROGRESS).exists():
            raise ValueError(f"{directory} is not complete: run the same swila data prepare again") from None
        raise ValueError(
            f"{directory} must be a directory written by swila data prepare: it has no {MANIFEST}"
        ) from None
    if content.get("format") != FORMAT:
        raise ValueError(f"{path} must have format {FORMAT}, got {content.get('format')!r}: prepare the data again")
    try:
        return _parse(content)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a valid manifest: {type(error).__name__} {error}") from None


def _parse(content: dict[str, Any]) -> Manifest:
    fields = {name: value for name, value in content.items() if name != "format"}
    fields["splits"] = {
        name: SplitManifest(split["tokens"], split["documents"], [ShardManifest(**shard) for shard in split["shards"]])
        for name, split in content["splits"].items()
    }
    manifest = Manifest(**fields)
    if manifest.dtype not in ITEM_BYTES:
        raise TypeError(f"dtype must be one of {', '.join(ITEM_BYTES)}, got {manifest.dtype!r}")
    return manifest
