"""Preparation of token directories: text in, shards out, through any interruption."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from swila.data.file_sources import DOCUMENT_FORMS, DocumentForm, FileSource
from swila.data.files import read_json, write_atomically, write_json
from swila.data.find_sources import find_sources
from swila.data.manifest import MANIFEST, PROGRESS, SPLITS, TOKENIZER, Manifest, dtype_of, read_manifest
from swila.data.shards import SHARD_TOKENS, SplitWriter
from swila.data.source import Broken, Source
from swila.data.token_data import TokenData
from swila.data.tokenizer import TextTokenizer

VALIDATION = 0.005
BATCH_CHARACTERS = 1 << 22
EMPTY, HELD_OUT, UNREADABLE = "without text", "also in the validation split", "on lines that are not JSON"
_OURS = re.compile(
    rf"({MANIFEST}|{PROGRESS}|{TOKENIZER})(\.\d+\.tmp)?|({'|'.join(SPLITS)})-\d{{5,}}(\.bounds)?\.bin|packed-.*\.bin(\.\d+\.tmp)?"
)
_START: dict[str, Any] = {"job": 0, "position": None, "skipped": {}, "writers": {}, "documents": 0}
# The fields of a manifest that the arguments determine. The name of the tokenizer is not among them, its content is.
_ARGUMENTS = ("tokenizer_sha256", "bos_token_id", "eos_token_id", "add_bos", "add_eos", "options", "sources")


class Prepared(NamedTuple):
    """Result of :func:`prepare`.

    Attributes:
        data: The token directory.
        unchanged: Whether it was complete before.
    """

    data: TokenData
    unchanged: bool


@dataclass
class PreparationProgress:
    """How far a preparation is, work of earlier commands included.

    Attributes:
        documents: Number of documents written.
        tokens: Number of tokens written.
        tokens_before: Number of tokens that earlier commands wrote.
        bytes_read: Number of bytes of the sources that have been read.
        bytes_total: Size of all sources, None if it is not known.
    """

    documents: int
    tokens: int
    tokens_before: int
    bytes_read: int
    bytes_total: int | None


@dataclass(frozen=True)
class _Job:
    """A source, and the split that its documents are for."""

    source: Source
    split: str


@dataclass
class _Batch:
    """Documents to tokenise together, and where to continue after them."""

    texts: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    job: int = 0
    position: dict[str, Any] | None = None
    bytes_read: int = 0


def prepare(
    sources: Iterable[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    *,
    column: str = "text",
    documents: DocumentForm = "file",
    subset: str | None = None,
    split: str = "train",
    validation: float | None = None,
    validation_from: Sequence[str | Path] = (),
    add_bos: bool | None = None,
    add_eos: bool | None = None,
    bos_token: str | None = None,
    eos_token: str | None = None,
    shard_tokens: int = SHARD_TOKENS,
    fresh: bool = False,
    progress: Callable[[PreparationProgress], None] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    save_every: float = 2.0,
) -> Prepared:
    """Tokenise documents into a directory of shards; the same call continues what was interrupted.

    The result depends on the arguments and the sources alone, byte for byte, however often it was interrupted. A
    directory that is complete is left as it is.

    Args:
        sources: Text, JSON lines and parquet files, folders of them, and data sets of the Hugging Face hub.
        tokenizer: A ``tokenizer.json``, a directory with one, or the name of a model on the hub.
        out: The directory to write.
        column: Field or column with the text, in JSON lines, parquet and data sets.
        documents: What a document is in a text file: the ``"file"``, a part between ``"blank-lines"``, or ``"lines"``.
        subset: Configuration of data sets.
        split: Split of data sets.
        validation: Fraction of documents for validation; default 0.005, or 0 with ``validation_from``. A keyed hash of
            the text decides, so equal documents are in the same split, whatever their order.
        validation_from: Sources of the validation split. Documents with equal text are left out of training.
        add_bos: Whether each document begins with BOS; default: if the tokenizer has one.
        add_eos: Whether each document ends with EOS; default: if BOS is not added.
        bos_token: Text of the BOS token, None to find it.
        eos_token: Text of the EOS token, None to find it.
        shard_tokens: A shard is closed at the end of the document with which it reaches this number of tokens.
        fresh: Start again, whatever the directory holds from an earlier call.
        progress: Called after every batch.
        interrupted: Asked after every batch; if true, progress is saved and KeyboardInterrupt raised.
        save_every: Seconds between two saves of the progress.
    """
    if documents not in DOCUMENT_FORMS:
        raise ValueError(f"documents must be one of {', '.join(DOCUMENT_FORMS)}, got {documents!r}")
    if validation_from and validation:
        raise ValueError(f"validation must be 0 with validation_from, got {validation}")
    fraction = VALIDATION if validation is None and not validation_from else validation or 0.0
    if not 0 <= fraction < 1:
        raise ValueError(f"validation must be a fraction in [0, 1), got {validation}")
    if shard_tokens < 1:
        raise ValueError(f"shard_tokens must be positive, got {shard_tokens}")
    out = Path(out)

    def found(names: Iterable[str | Path]) -> list[Source]:
        return find_sources(names, column=column, documents=documents, subset=subset, split=split)

    jobs = _jobs(found(sources), found(validation_from))
    text_tokenizer = TextTokenizer(tokenizer)
    special = text_tokenizer.special_tokens(add_bos=add_bos, add_eos=add_eos, bos_token=bos_token, eos_token=eos_token)
    manifest = Manifest(
        vocab_size=text_tokenizer.vocab_size,
        dtype=dtype_of(text_tokenizer.vocab_size),
        bos_token_id=special.bos,
        eos_token_id=special.eos,
        add_bos=special.add_bos,
        add_eos=special.add_eos,
        tokenizer=str(tokenizer),
        tokenizer_sha256=text_tokenizer.sha256,
        splits={},
        sources=[{**job.source.describe(), "split": job.split} for job in jobs],
        options={"column": column, "documents": documents, "validation": fraction, "shard_tokens": shard_tokens},
    )
    with _locked(out):
        if fresh:
            _clear(out)
        elif (out / MANIFEST).exists():
            _check_same(out, asdict(read_manifest(out)), asdict(manifest))
            (out / PROGRESS).unlink(missing_ok=True)
            return Prepared(TokenData(out), unchanged=True)
        preparation = _Preparation(out, manifest, jobs, text_tokenizer, fraction, shard_tokens)
        try:
            preparation.run(progress, interrupted, save_every)
        except ValueError:
            if preparation.documents == 0:  # nothing is lost, and other arguments need no --fresh
                _clear(out)
            raise
        return Prepared(TokenData(out), unchanged=False)


class _Preparation:
    """One preparation in its directory."""

    def __init__(
        self,
        out: Path,
        manifest: Manifest,
        jobs: list[_Job],
        tokenizer: TextTokenizer,
        fraction: float,
        shard_tokens: int,
    ) -> None:
        self.out, self.manifest, self.jobs, self.tokenizer, self.fraction = out, manifest, jobs, tokenizer, fraction
        self.state = dict(_START)
        if (out / PROGRESS).exists():
            saved = read_json(out / PROGRESS)
            if saved["state"]["documents"]:
                _check_same(out, saved["manifest"], asdict(manifest))
                self.state = saved["state"]
        elif other := sorted(path.name for path in out.iterdir() if not path.name.endswith(".tmp")):
            raise ValueError(f"out must be a new or empty directory, got {out}, which holds {', '.join(other[:3])}")
        write_json(out / PROGRESS, {"state": self.state, "manifest": asdict(manifest)})
        self.writers = {
            name: SplitWriter(out, name, manifest.dtype, shard_tokens, self.state["writers"].get(name))
            for name in SPLITS
        }
        self.skipped = Counter(self.state["skipped"])

    @property
    def documents(self) -> int:
        """Number of documents written."""
        return sum(writer.documents for writer in self.writers.values())

    @property
    def tokens(self) -> int:
        """Number of tokens written."""
        return sum(writer.tokens for writer in self.writers.values())

    def run(
        self,
        progress: Callable[[PreparationProgress], None] | None,
        interrupted: Callable[[], bool],
        save_every: float,
    ) -> None:
        """Tokenise what is left, and write the manifest."""
        sizes = [job.source.size for job in self.jobs]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        saved, before = time.monotonic(), self.tokens
        # One batch is tokenised by the threads of tokenizers while this one reads the next and writes the last.
        with ThreadPoolExecutor(1) as pool:
            for batch, tokens in _ahead(pool, self._batches(), lambda batch: self.tokenizer.encode(batch.texts)):
                self._write(batch, tokens)
                if progress is not None:
                    read = sum(size or 0 for size in sizes[: batch.job]) + batch.bytes_read
                    progress(PreparationProgress(self.documents, self.tokens, before, read, total))
                if interrupted():
                    self._save()
                    raise KeyboardInterrupt
                if time.monotonic() - saved >= save_every:
                    self._save()
                    saved = time.monotonic()
        self._finish()

    def _batches(self) -> Iterator[_Batch]:
        """Yield the documents that are left."""
        held_out = self._held_out()
        batch, characters = _Batch(), 0
        position = self.state["position"]
        for number in range(self.state["job"], len(self.jobs)):
            job = self.jobs[number]
            reader = job.source.open(position)
            begun, position = position is not None, None
            for text in reader:
                begun = True
                if isinstance(text, Broken):
                    batch.skipped[UNREADABLE] += 1
                    continue
                if text is None or not text.strip():
                    batch.skipped[EMPTY] += 1
                    continue
                text = _without_surrogates(text)
                name = job.split
                if job.split == "train" and (self.fraction or held_out):
                    key = _key(text)
                    if key in held_out:
                        batch.skipped[HELD_OUT] += 1
                        continue
                    if key < self.fraction * 2**64:
                        name = "validation"
                batch.texts.append(text)
                batch.splits.append(name)
                characters += len(text)
                if characters >= BATCH_CHARACTERS:
                    batch.job, batch.position, batch.bytes_read = number, reader.position(), reader.bytes_read
                    yield batch
                    batch, characters = _Batch(), 0
            if not begun:
                raise ValueError(f"{job.source.name} has no documents")
        batch.job = len(self.jobs)
        yield batch

    def _held_out(self) -> set[int]:
        """Return the keys of all documents of the sources for validation."""
        texts = (text for job in self.jobs if job.split == "validation" for text in job.source.open(None))
        return {_key(_without_surrogates(text)) for text in texts if text is not None and not isinstance(text, Broken)}

    def _write(self, batch: _Batch, tokens: list[np.ndarray]) -> None:
        """Append the documents of a batch, with their special tokens."""
        manifest = self.manifest
        before = np.array([manifest.bos_token_id] if manifest.add_bos else [], dtype=np.int64)
        after = np.array([manifest.eos_token_id] if manifest.add_eos else [], dtype=np.int64)
        for name, ids in zip(batch.splits, tokens, strict=True):
            if not len(ids):  # a normalizer may leave nothing of a text
                batch.skipped[EMPTY] += 1
                continue
            self.writers[name].append(np.concatenate([before, ids, after]))
        self.skipped.update(batch.skipped)
        self.state |= {"job": batch.job, "position": batch.position}

    def _save(self) -> None:
        """Record how far the preparation is, after its shards are on disk."""
        self.state |= {
            "documents": self.documents,
            "skipped": dict(self.skipped),
            "writers": {name: writer.state() for name, writer in self.writers.items()},
        }
        write_json(self.out / PROGRESS, {"state": self.state, "manifest": asdict(self.manifest)})

    def _finish(self) -> None:
        if self.writers["train"].documents == 0:
            names = ", ".join(job.source.name for job in self.jobs[:3] if job.split == "train")
            validation = self.writers["validation"].documents
            _clear(self.out)
            raise ValueError(
                f"no documents are left for training in {names}: {validation} are in the validation split, "
                f"{self.skipped[HELD_OUT]} are {HELD_OUT}, {self.skipped[EMPTY]} are {EMPTY}. "
                "Choose another --validation, or other documents with --documents"
            )
        self._save()
        splits = {name: writer.finish() for name, writer in self.writers.items()}
        splits = {name: split for name, split in splits.items() if split.documents}
        expected = {file for split in splits.values() for s in split.shards for file in (s.tokens_file, s.bounds_file)}
        for path in self.out.iterdir():  # what killed commands left
            if _OURS.fullmatch(path.name) and path.name not in {*expected, PROGRESS}:
                path.unlink()
        write_atomically(self.out / TOKENIZER, self.tokenizer.content)
        skipped = {reason: self.skipped[reason] for reason in (EMPTY, HELD_OUT, UNREADABLE) if self.skipped[reason]}
        replace(self.manifest, splits=splits, skipped=skipped).write(self.out)
        (self.out / PROGRESS).unlink()


def _jobs(train: list[Source], validation: list[Source]) -> list[_Job]:
    """Return all sources with their splits; files for validation are not read for training."""
    held_out = {source.path.resolve() for source in validation if isinstance(source, FileSource)}
    train = [each for each in train if not (isinstance(each, FileSource) and each.path.resolve() in held_out)]
    if not train:
        raise ValueError("sources must name at least one file or data set that is not in validation_from")
    return [*(_Job(source, "train") for source in train), *(_Job(source, "validation") for source in validation)]


def _ahead(
    pool: ThreadPoolExecutor, batches: Iterator[_Batch], encode: Callable[[_Batch], list[np.ndarray]]
) -> Iterator[tuple[_Batch, list[np.ndarray]]]:
    """Yield each batch with its tokens, while the next one is being tokenised."""
    last: tuple[_Batch, Future[list[np.ndarray]]] | None = None
    for batch in batches:
        future = pool.submit(encode, batch)
        if last is not None:
            yield last[0], last[1].result()
        last = batch, future
    if last is not None:
        yield last[0], last[1].result()


def _key(text: str) -> int:
    """Return a hash of a text that is uniform on ``[0, 2^64)``."""
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=b"swila validation split")
    return int.from_bytes(digest.digest(), "little")


def _without_surrogates(text: str) -> str:
    r"""Replace lone surrogates, which JSON can express (``"\ud800"``) and UTF-8 cannot, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _check_same(out: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise ValueError if a directory was begun with other arguments."""
    for name in _ARGUMENTS:
        if difference := _difference(there[name], here[name], name):
            raise ValueError(f"{out} was prepared with other arguments: {difference}. Start again with --fresh")


def _difference(there: Any, here: Any, name: str) -> str | None:
    if name == "sources":
        return _difference_of_sources(there, here)
    if isinstance(there, dict) and isinstance(here, dict):
        return next((found for key in here if (found := _difference(there.get(key), here[key], key))), None)
    if there == here:
        return None
    if name == "tokenizer_sha256":
        return "the tokenizer is another one"
    return f"{name} was {there} and is {here}"


def _difference_of_sources(there: list[dict[str, Any]], here: list[dict[str, Any]]) -> str | None:
    def name(source: dict[str, Any] | None) -> str:
        return "absent" if source is None else str(source.get("path") or source.get("dataset"))

    for number in range(max(len(there), len(here))):
        old, new = (sources[number] if number < len(sources) else None for sources in (there, here))
        if old == new:
            continue
        if old is None or new is None or name(old) != name(new):
            return f"source {number + 1} was {name(old)} and is {name(new)}"
        key = next(key for key in {**old, **new} if old.get(key) != new.get(key))
        return f"{key} of {name(new)} was {old.get(key)} and is {new.get(key)}"
    return None


def _clear(out: Path) -> None:
    """Remove the files of an earlier preparation.

    A directory with neither manifest nor progress is not ours and stays as it is. The progress is removed last, so that
    the next command finds a directory of ours if this one is killed here.
    """
    if not (out / MANIFEST).exists() and not (out / PROGRESS).exists():
        return
    write_json(out / PROGRESS, {"state": _START})
    (out / MANIFEST).unlink(missing_ok=True)
    for path in out.iterdir():
        if _OURS.fullmatch(path.name) and path.name != PROGRESS:
            path.unlink()
    (out / PROGRESS).unlink()


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Make a directory and keep other preparations out of it, where the system has locks."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a directory, got the file {out}")
    out.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{out} is being prepared by another process") from None
        except OSError:  # some network file systems have no locks
            pass
        yield
    finally:
        os.close(handle)
