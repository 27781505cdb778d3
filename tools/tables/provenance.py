"""Whether results come from the commit they name: the digest of their sources, checked against git.

A results file has one ``environment`` or several (``other_environments``), each with the ``commit`` git named and the
digest of the ``sources`` that ran (:mod:`swila.source_digest`). If the digest is not that of the named commit (a
machine may have a copy of the files and an outdated git folder), the commit is looked up in the history by its digest
and written into the results file. Sources that match no commit are an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from swila.source_digest import git, tree_digest, tree_of
from swila.training.json_files import write_json

# Results made before digests were recorded (2026-11-16): file -> dates of its environments. Nothing newer belongs here.
UNDIGESTED = {
    "cdar-memory.json": {"2026-11-16T04:22:41+00:00"},
    "cdar-paper-long.json": {"2026-11-16T06:14:31+00:00"},
    "cdar-paper-settings.json": {"2026-11-16T06:00:56+00:00"},
    "cdar-paper.json": {"2026-11-16T03:11:19+00:00", "2026-11-16T05:51:24+00:00"},
    "cdar-tiny-long.json": {"2026-11-16T03:45:58+00:00"},
    "cdar-tiny-settings.json": {"2026-11-16T04:40:12+00:00"},
    "cdar-tiny-sizes.json": {"2026-11-16T05:01:21+00:00"},
    "cdar-tiny.json": {"2026-11-16T03:42:55+00:00"},
    "generate-cuda.json": {"2026-11-15T20:30:51+00:00"},
    "kernels-log.json": {"2026-11-15"},
    "mqar-tiny.json": {"2026-11-16T04:07:14+00:00"},
    "regbench.json": {
        "2026-11-15T22:41:34+00:00",
        "2026-11-15T22:54:50+00:00",
        "2026-11-16T01:31:12+00:00",
        "2026-11-16T01:52:16+00:00",
    },
    "softmax-regression.json": {
        "2026-11-15T22:41:34+00:00",
        "2026-11-15T22:54:51+00:00",
        "2026-11-16T01:29:14+00:00",
        "2026-11-16T01:43:31+00:00",
    },
    "experiments-cuda-cdar-before.json": {"2026-11-16T05:51:10+00:00"},
    "experiments-cuda-cdar.json": {"2026-11-16T05:49:58+00:00"},
    "experiments-cuda.json": {"2026-11-16T01:40:56+00:00"},
}


def check(root: Path) -> list[str]:
    """Check the commits that the results of a repository name, and correct those that do not match the sources.

    Returns a message for each commit that was corrected, and for each file that could not be checked because git, the
    history or the commit is missing.

    Raises:
        ValueError: A results file names no sources and is not on the list of exceptions, or its sources match no
            commit.
    """
    told = []
    history = History(root)
    for path in sorted((root / "results").glob("*.json")):
        record = json.loads(path.read_text())
        written = False
        for where in environments(record):
            sources = where.get("sources")
            if sources is None:
                if where.get("date") not in UNDIGESTED.get(path.name, ()):
                    raise ValueError(
                        f"{path} must name the sources it comes from (environment.sources), got none; results without "
                        "them are excepted only if they are on the list in tools/tables/provenance.py"
                    )
                continue
            named = where.get("commit")
            if named is not None and history.sources_of(named) == sources:
                continue
            commit = history.find(sources)
            if commit is not None:
                told.append(f"{path.name}: commit {commit} instead of {named}, found by its sources")
                where["commit"], written = commit, True
            elif reason := history.incomplete():
                told.append(f"{path.name}: commit {named} not checked: {reason}")
            else:
                raise ValueError(
                    f"{path} must come from committed sources, but no commit up to HEAD has those of digest "
                    f"{sources[:12]}; it names commit {named}"
                )
        if written:
            write_json(path, record)
    return told


def environments(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all environments of a record."""
    yield record.get("environment") or {}
    yield from record.get("other_environments", [])


class History:
    """The commits of a repository, by the digests of their sources."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._digest = cache(lambda tree: tree_digest(tree, root))
        self._trees: dict[str, str] | None = None

    def sources_of(self, commit: str) -> str | None:
        """Return the digest of a commit, or None if the commit is unknown."""
        tree = tree_of([commit], self.root).get(commit)
        return None if tree is None else self._digest(tree)

    def find(self, sources: str) -> str | None:
        """Return the oldest commit up to HEAD with these sources, abbreviated, or None."""
        if self._trees is None:
            commits = (git(self.root, "rev-list", "--reverse", "HEAD") or b"").decode().split()
            self._trees = tree_of(commits, self.root)
        for commit, tree in self._trees.items():
            if self._digest(tree) == sources:
                return commit[:12]
        return None

    def incomplete(self) -> str | None:
        """Return why the history may lack commits, or None if it is complete."""
        shallow = git(self.root, "rev-parse", "--is-shallow-repository")
        if shallow is None:
            return "no git, or no repository"
        top = git(self.root, "rev-parse", "--show-toplevel")
        if top is None or Path(top.decode().strip()).resolve() != self.root.resolve():
            return "the results are not in the repository that git found"
        return "the clone is shallow" if shallow.strip() == b"true" else None
