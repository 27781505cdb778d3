"""``swila data``: preparation of token data, and a look at it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swila.cli.options import one_line_errors
from swila.cli.time_left import TimeLeft, in_words

if TYPE_CHECKING:
    from rich.console import Console

    from swila.data import PreparationProgress, TokenData, TokenSplit

data = typer.Typer(help="Prepare text for pretraining, and look at prepared data.", no_args_is_help=True)

SHOWN_TOKENS = 48  # tokens of a sample document that are decoded
LARGE = 1 << 28  # bytes whose checksums take long enough for a progress bar


@data.command()
def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Text (.txt), JSON lines (.jsonl, .jsonl.gz) and parquet files, folders of them, or data sets of the "
            "Hugging Face hub (owner/name).",
            metavar="SOURCE...",
        ),
    ],
    tokenizer: Annotated[
        str, typer.Option(help="A tokenizer.json, a directory with one, or the name of a model on the hub.")
    ],
    out: Annotated[Path, typer.Option(help="Directory to write.")],
    column: Annotated[str, typer.Option(help="Field or column with the text.")] = "text",
    documents: Annotated[
        str, typer.Option(help="What a document is in a text file: file, blank-lines (between them) or lines.")
    ] = "file",
    subset: Annotated[
        str | None, typer.Option(help="Configuration of the data sets. With it, a folder is read as a data set.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the data sets.")] = "train",
    validation: Annotated[
        float | None,
        typer.Option(help="Fraction of documents for validation. Default: 0.005, or 0 with --validation-from."),
    ] = None,
    validation_from: Annotated[
        list[str] | None, typer.Option(help="Source of validation documents; repeat for several.")
    ] = None,
    bos: Annotated[
        bool | None,
        typer.Option("--bos/--no-bos", help="Begin each document with BOS. Default: if the tokenizer has one."),
    ] = None,
    eos: Annotated[
        bool | None, typer.Option("--eos/--no-eos", help="End each document with EOS. Default: if BOS is not added.")
    ] = None,
    bos_token: Annotated[str | None, typer.Option(help="The BOS token. Default: found in the tokenizer.")] = None,
    eos_token: Annotated[str | None, typer.Option(help="The EOS token. Default: found in the tokenizer.")] = None,
    shard_tokens: Annotated[int, typer.Option(help="Tokens of a shard.")] = 1 << 26,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again, whatever was prepared there.")] = False,
) -> None:
    """Tokenise text into shards that swila pretrain reads.

    Interrupted, the same command continues. If the directory is complete, it does nothing. The result does not depend
    on interruptions.
    """
    from rich.console import Console

    from swila.data import prepare as prepare_tokens
    from swila.training import interrupts_as_flag, terminate

    console = Console()
    signal.signal(signal.SIGTERM, terminate)
    try:
        with one_line_errors(), interrupts_as_flag() as interrupts, _Progress(console) as show:
            done = prepare_tokens(
                sources,
                tokenizer,
                out,
                column=column,
                documents=documents,  # type: ignore[arg-type]  # checked there
                subset=subset,
                split=split,
                validation=validation,
                validation_from=validation_from or (),
                add_bos=bos,
                add_eos=eos,
                bos_token=bos_token,
                eos_token=eos_token,
                shard_tokens=shard_tokens,
                fresh=fresh,
                progress=show,
                interrupted=interrupts.is_set,
            )
    except KeyboardInterrupt:
        console.print(f"interrupted; the same command continues in {out}", markup=False)
        raise SystemExit(130) from None
    if done.unchanged:
        console.print(f"{out} is complete: nothing to do. Use --fresh to start again.", markup=False, highlight=False)
        return
    manifest = done.data.manifest
    for name, found in manifest.splits.items():
        console.print(f"{name}: {found.documents:,} documents, {found.tokens:,} tokens", highlight=False)
    for reason, count in manifest.skipped.items():
        console.print(f"left out: {count:,} documents {reason}", highlight=False)
    if "validation" not in manifest.splits:
        reason = "no document fell into it" if manifest.options["validation"] else "none was asked for"
        console.print(f"There is no validation split: {reason}.", highlight=False)


@data.command()
def show(
    path: Annotated[Path, typer.Argument(help="Directory of swila data prepare.")],
    samples: Annotated[int, typer.Option(help="Random documents to decode.", min=0)] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the choice of documents.")] = 0,
) -> None:
    """Verify prepared data, count it and decode samples."""
    from rich.console import Console

    from swila.data import TextTokenizer, TokenData

    console = Console()
    with one_line_errors():
        found = TokenData(path)
        _verify(console, found)
        tokenizer = TextTokenizer(found.tokenizer_file) if samples else None
    _print_table(console, found)
    if tokenizer is None:
        return
    for number, tokens, length in _samples(found.split("train"), samples, seed):
        text = tokenizer.decode(tokens)
        more = " …" if length > len(tokens) else ""
        console.print(f"\ntrain document {number:,}, {length:,} tokens:", style="bold", highlight=False)
        console.print(text + more, markup=False, highlight=False, soft_wrap=True)


class _Progress:
    """The live line of a preparation: documents, tokens, tokens/s of this command, and time left by bytes read."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = TextColumn("{task.fields[counts]}"), BarColumn(), TextColumn("{task.fields[left]}")
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task("", total=None, counts="reading", left="")
        self._begun = time.monotonic()
        self._shown = False  # whether there was any progress
        self._left: TimeLeft | None = None

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.update(self._task, visible=self._shown)
        self._bar.stop()

    def __call__(self, now: PreparationProgress) -> None:
        self._shown = True
        speed = (now.tokens - now.tokens_before) / max(time.monotonic() - self._begun, 1e-9)
        counts = f"{now.documents:,} documents, {now.tokens:,} tokens, {speed:,.0f} tokens/s"
        if now.bytes_total is None:
            self._bar.update(self._task, counts=counts)
            return
        if self._left is None:
            self._left = TimeLeft({"": now.bytes_total}, 1)
        self._left.progressed("", now.bytes_read)
        left = f"{in_words(0.0 if now.bytes_read == now.bytes_total else self._left.of(''))} left"
        self._bar.update(self._task, total=now.bytes_total, completed=now.bytes_read, counts=counts, left=left)


def _verify(console: Console, found: TokenData) -> None:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("verifying"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=found.bytes < LARGE) as bar:
        task = bar.add_task("", total=found.bytes)
        found.verify(lambda done, total: bar.update(task, completed=done))


def _print_table(console: Console, found: TokenData) -> None:
    from rich.table import Table

    table = Table(box=None)
    table.add_column("split", header_style="bold")
    for heading in ("documents", "tokens", "tokens per document", "shards"):
        table.add_column(heading, header_style="bold", justify="right")
    manifest = found.manifest
    for name, split in manifest.splits.items():
        mean = f"{split.tokens / split.documents:,.1f}"
        table.add_row(name, f"{split.documents:,}", f"{split.tokens:,}", mean, f"{len(split.shards):,}")
    console.print(table)
    added = [name for name, is_added in (("BOS", manifest.add_bos), ("EOS", manifest.add_eos)) if is_added]
    console.print(
        f"tokenizer {manifest.tokenizer} (sha256 {manifest.tokenizer_sha256[:12]}), vocabulary {manifest.vocab_size:,}"
        f", {' and '.join(added) or 'no token'} added to each document\n"
        f"{found.bytes:,} bytes, tokens as {manifest.dtype}, all checksums right",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _samples(split: TokenSplit | None, count: int, seed: int) -> Iterator[tuple[int, list[int], int]]:
    """Yield number, first tokens and length of random documents."""
    import random

    if split is None:
        return
    chosen = random.Random(seed).sample(range(split.documents), min(count, split.documents))
    for number in chosen:
        start, stop = split.bounds[number : number + 2].tolist()
        yield number, split.read(start, min(stop, start + SHOWN_TOKENS)).tolist(), stop - start
