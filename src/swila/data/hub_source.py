"""Documents of Hugging Face data sets, streamed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from swila.data.source import checked_text, missing_column, require


@dataclass(frozen=True)
class HubSource:
    """A data set on the Hugging Face hub, or in a local directory of the same form.

    Args:
        path: Name on the hub, such as ``HuggingFaceFW/fineweb-edu``, or directory.
        subset: Name of the configuration, None for the default one.
        split: Name of the split in the data set.
        column: Column with the text.
    """

    path: str
    subset: str | None
    split: str
    column: str

    @property
    def name(self) -> str:
        """Name of data set, subset and split."""
        return "/".join(part for part in (self.path, self.subset, self.split) if part)

    @property
    def size(self) -> None:
        """Not known."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return what names the data set."""
        return {"dataset": self.path, "subset": self.subset, "dataset_split": self.split}

    def open(self, position: dict[str, Any] | None) -> HubReader:
        """Return a reader from a position."""
        return HubReader(self, position)


class HubReader:
    """Reader of a data set: continues from the state of ``datasets``, or by counting if its version has changed.

    Args:
        source: The data set.
        position: Result of :meth:`position`, None for the beginning.
    """

    def __init__(self, source: HubSource, position: dict[str, Any] | None) -> None:
        self._source, self.bytes_read = source, 0
        self._count = position["after"] if position else 0
        self._datasets = require("datasets")
        self._data = self._opened()
        if position:
            if position["datasets"] == self._datasets.__version__:
                self._data.load_state_dict(position["state"])
            else:
                self._data = self._data.skip(self._count)

    def __iter__(self) -> Iterator[str | None]:
        """Iterate over the documents that are left."""
        column = self._source.column
        rows = iter(self._data)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except Exception as error:  # of whatever package reads the network
                reason = str(error).partition("\n")[0]
                after = f"{self._source.name}, after row {self._count}"
                raise ValueError(f"{after}: {reason}. The same command continues") from error
            self._count += 1
            where = f"{self._source.name}, row {self._count}"
            if column not in row:
                raise missing_column(column, list(row), where)
            yield checked_text(row[column], column, where)

    def position(self) -> dict[str, Any]:
        """Return where to continue."""
        return {"after": self._count, "state": self._data.state_dict(), "datasets": self._datasets.__version__}

    def _opened(self) -> Any:
        source = self._source
        self._datasets.disable_progress_bars()
        try:
            data = self._datasets.load_dataset(source.path, source.subset, split=source.split, streaming=True)
        except (ValueError, OSError, RuntimeError) as error:  # OSError: connection; others: names that do not exist
            reason = str(error).partition("\n")[0]
            raise ValueError(f"data set {source.path} cannot be opened: {reason}") from None
        if data.column_names is None:  # known after the first row only
            return data
        if source.column not in data.column_names:
            raise missing_column(source.column, data.column_names, source.name)
        return data.select_columns([source.column])
