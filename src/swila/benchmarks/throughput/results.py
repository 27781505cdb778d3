"""A results file that is complete after every case, and can be continued by a later process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swila.training.json_files import first_difference, read_json, write_json

SAME = ("sources", "torch", "cuda", "packages", "gpus")  # of the environment, in all processes of a file
FINAL = ("timed", "out of memory")


class Results:
    """The rows of a benchmark, written to a JSON file after each.

    A row is a dictionary with the ``status`` ``"timed"``, ``"out of memory"``, ``"refused"`` or ``"failed"``, and the
    ``reason`` of the last three. A later process with the same settings, sources and hardware adds to the file: it
    keeps rows that were timed or ran out of memory, and replaces the others.

    Attributes:
        record: The content of the file.
        path: The file.
        session: Number of earlier processes that wrote to the file; rows hold that of their process.
    """

    def __init__(
        self,
        path: Path,
        settings: dict[str, Any],
        environment: dict[str, Any],
        keys: Sequence[str],
        fresh: bool = False,
    ) -> None:
        """Start or continue a file.

        Args:
            path: The file; its directory is made.
            settings: What must be the same for all rows.
            environment: From :func:`swila.environment.environment`.
            keys: Fields of a row that tell it from the others.
            fresh: Whether to replace an existing file.
        """
        if path.is_dir():
            raise ValueError(f"out must be a file, got the directory {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.keys = path, tuple(keys)
        known = read_json(path) if path.exists() and path.stat().st_size and not fresh else None
        self.record: dict[str, Any] = settings | {"environment": environment, "dates": [], "rows": []}
        if known is not None:
            self._check(known, settings, environment)
            self.record = known
        self.session = len(self.record["dates"])
        self.record["dates"].append(environment["date"])
        self.save()

    def _check(self, known: dict[str, Any], settings: dict[str, Any], environment: dict[str, Any]) -> None:
        there = {key: known.get(key) for key in settings}
        there |= {key: known.get("environment", {}).get(key) for key in SAME}
        here = settings | {key: environment[key] for key in SAME}
        if difference := first_difference(there, here):
            raise ValueError(
                f"out must be a new file or one with the same settings, sources and hardware, but in {self.path} "
                f"{difference}; give another file, or --fresh to replace it"
            )

    def find(self, **key: Any) -> dict[str, Any] | None:
        """Return the row with these values in its keys, or None."""
        return next((row for row in self.record["rows"] if all(row[name] == key[name] for name in self.keys)), None)

    def has(self, **key: Any) -> bool:
        """Whether a case was timed or ran out of memory, so that it need not run again."""
        row = self.find(**key)
        return row is not None and row["status"] in FINAL

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, or replace that of the same case, and write the file."""
        before = self.find(**{name: row[name] for name in self.keys})
        rows = [each for each in self.record["rows"] if each is not before]
        self.record["rows"] = [*rows, row | {"session": self.session}]
        self.save()

    def save(self) -> None:
        """Write the file."""
        write_json(self.path, self.record)
