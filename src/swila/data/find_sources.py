"""From what a user names to the sources that are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from swila.data.file_sources import FORMATS, DocumentForm, FileSource, is_known
from swila.data.hub_source import HubSource
from swila.data.source import Source

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", flags=re.ASCII)


def find_sources(
    names: Iterable[str | Path], *, column: str, documents: DocumentForm, subset: str | None, split: str
) -> list[Source]:
    """Return the sources that names stand for, in a fixed order.

    A path that exists is a file, or a folder whose files are taken recursively and sorted. With a subset, a folder is a
    data set in the form of the hub. Anything else of the form ``owner/name`` is a data set on the hub.

    Args:
        names: Files, folders and data sets.
        column: Field or column with the text.
        documents: What a document is in a text file.
        subset: Configuration of data sets.
        split: Split of data sets.
    """
    found: list[Source] = []
    for name in names:
        path = Path(name)
        if path.is_dir() and subset is None:
            found += [FileSource(file, column, documents) for file in _files_in(path)]
        elif path.is_dir() or (not path.exists() and _HUB_NAME.fullmatch(str(name))):
            found.append(HubSource(str(name), subset, split, column))
        elif path.exists():
            found.append(FileSource(path, column, documents))
        else:
            raise ValueError(
                f"source {name} does not exist. Sources are files or folders of {FORMATS}, "
                "and data sets of the Hugging Face hub by name (owner/name)"
            )
    return found


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a folder that can be read, without hidden ones."""
    files = [path for path in folder.rglob("*") if path.is_file() and is_known(path)]
    files = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not files:
        raise ValueError(f"folder {folder} has no files that can be read; these can: {FORMATS}")
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())
