"""Tokenizers: where they come from, and the tokens that begin and end a document."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swila.data.manifest import TOKENIZER
from swila.data.source import require

CONFIG = "tokenizer_config.json"
BOS_NAMES = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]", "<BOS>")
EOS_NAMES = ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[EOS]", "<EOS>")


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens around each document.

    Attributes:
        bos: Id of the token that begins a text, None if the tokenizer has none.
        eos: Id of the token that ends a text, None if the tokenizer has none.
        add_bos: Whether each document begins with ``bos``.
        add_eos: Whether each document ends with ``eos``.
    """

    bos: int | None
    eos: int | None
    add_bos: bool
    add_eos: bool


class TextTokenizer:
    """A tokenizer that turns documents into ids without special tokens.

    Names of special tokens that occur in a text are tokenised as text. Truncation, padding and dropout of the file do
    not apply.

    Args:
        name: A ``tokenizer.json``, a directory with one, or the name of a model on the Hugging Face hub.

    Attributes:
        name: As given.
        content: Bytes of the ``tokenizer.json``.
        sha256: Their checksum.
        vocab_size: Largest id that the tokenizer can produce, plus one; added tokens count.
    """

    def __init__(self, name: str | Path) -> None:
        self.name = str(name)
        file, config = _located(name)
        self.content = file.read_bytes()
        self.sha256 = hashlib.sha256(self.content).hexdigest()
        tokenizers = require("tokenizers")
        try:
            self._json: dict[str, Any] = json.loads(self.content)
            self._tokenizer = tokenizers.Tokenizer.from_buffer(self.content)
        except Exception as error:  # tokenizers raises Exception itself
            raise ValueError(f"tokenizer {file} is not a valid tokenizer.json: {error}") from None
        self._config: dict[str, Any] = _read_config(config) if config is not None else {}
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        if not ids:
            raise ValueError(f"tokenizer {file} has an empty vocabulary")
        self.vocab_size: int = max(ids) + 1

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, int64; texts are tokenised in parallel."""
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # tokenizers raises Exception itself
            raise ValueError(f"tokenizer {self.name} cannot tokenise a document: {error}") from None
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ids, special tokens included."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def special_tokens(
        self,
        *,
        add_bos: bool | None = None,
        add_eos: bool | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
    ) -> SpecialTokens:
        """Return the tokens to put around documents.

        By default, BOS in front if the tokenizer has one, else EOS behind.

        Args:
            add_bos: Whether each document begins with BOS, None for the default.
            add_eos: Whether each document ends with EOS, None for the default.
            bos_token: Text of the BOS token, None to find it.
            eos_token: Text of the EOS token, None to find it.
        """
        bos = self._found("bos", bos_token, BOS_NAMES)
        eos = self._found("eos", eos_token, EOS_NAMES)
        for name, wanted, token in (("bos", add_bos, bos), ("eos", add_eos, eos)):
            if wanted and token is None:
                raise ValueError(f"tokenizer {self.name} has no {name.upper()} token: name it with --{name}-token TEXT")
        with_bos = bos is not None if add_bos is None else add_bos
        with_eos = not with_bos if add_eos is None else add_eos
        if with_eos and eos is None:
            raise ValueError(
                f"tokenizer {self.name} has no token to separate documents: name one with --bos-token TEXT or "
                "--eos-token TEXT, or use --no-bos --no-eos"
            )
        return SpecialTokens(bos, eos, with_bos, with_eos)

    def _found(self, kind: str, given: str | None, names: Sequence[str]) -> int | None:
        if given is not None:
            token = self._tokenizer.token_to_id(given)
            if token is None:
                raise ValueError(f"{kind}_token must be a token of {self.name}, got {given!r}")
            return token
        key = f"{kind}_token"
        if key in self._config:  # null says that there is none
            text = self._config[key]
            text = text.get("content") if isinstance(text, dict) else text
            return self._tokenizer.token_to_id(text) if text is not None else None
        in_template = _template_token(self._json.get("post_processor"), kind)
        for name in (*([in_template] if in_template else []), *names):
            if (token := self._tokenizer.token_to_id(name)) is not None:
                return token
        return None


def _located(name: str | Path) -> tuple[Path, Path | None]:
    """Return the paths of tokenizer.json and of tokenizer_config.json, None if there is no such file."""
    path = Path(name)
    if path.is_dir() and not (path / TOKENIZER).is_file():
        raise ValueError(f"tokenizer {path} is a directory without {TOKENIZER}")
    if path.exists():
        file = path / TOKENIZER if path.is_dir() else path
        config = file.with_name(CONFIG)
        return file, config if config.is_file() else None
    if path.suffix in (".json", ".model") or path.is_absolute() or len(path.parts) > 2:
        raise ValueError(f"tokenizer {path} does not exist")
    return _downloaded(str(name))


def _downloaded(name: str) -> tuple[Path, Path | None]:
    """Return the files of a model on the hub; the file itself, so that its checksum depends on no version."""
    hub = require("huggingface_hub")
    try:
        file = Path(hub.hf_hub_download(name, TOKENIZER))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"tokenizer {name} is no file or directory, and its {TOKENIZER} cannot be had from the hub: "
            f"{str(error).partition(chr(10))[0]}"
        ) from None
    try:
        return file, Path(hub.hf_hub_download(name, CONFIG))
    except (OSError, ValueError):
        return file, None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be a JSON file, but cannot be read: {error}") from None
    return content if isinstance(content, dict) else {}


def _template_token(processor: Any, kind: str) -> str | None:
    """Return the special token that the post-processor puts before (bos) or after (eos) a single text."""
    if not isinstance(processor, dict):
        return None
    for inner in processor.get("processors", ()):
        if found := _template_token(inner, kind):
            return found
    pieces = processor.get("single", ()) if processor.get("type") == "TemplateProcessing" else ()
    at = next((number for number, piece in enumerate(pieces) if "Sequence" in piece), None)
    if at is None:
        return None
    side = pieces[:at] if kind == "bos" else pieces[at + 1 :]
    return side[0]["SpecialToken"]["id"] if side else None
