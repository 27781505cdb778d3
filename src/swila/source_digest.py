r"""A digest of the package's own sources, the same from files on disk and from a commit.

The digest is the SHA-256 of a listing as ``sha256sum`` prints it: a line ``DIGEST  PATH`` for each file of the package,
sorted, with paths relative to ``src/swila``. Compiled files (``__pycache__``) and hidden files are excluded, and line
endings are those of the repository. In a checkout::

    cd src/swila && find . -type f -not -path '*/__pycache__/*' -not -path '*/.*' -printf '%P\n' \
        | LC_ALL=C sort | xargs sha256sum | sha256sum

``python -m swila.source_digest`` prints the digest of the installed package, ``python -m swila.source_digest COMMIT``
that of a commit of the repository in the working directory.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath

PACKAGE = "src/swila"  # from the repository's root


def source_digest(folder: Path | None = None) -> str | None:
    """Return the digest of the files in a folder (default: the package itself), or None if there are no files."""
    root = folder or Path(__file__).parent
    try:
        paths = [path for path in root.rglob("*") if path.is_file()]
        return digest({path.relative_to(root).as_posix(): path.read_bytes() for path in paths})
    except OSError:
        return None


def digest(files: Mapping[str, bytes]) -> str | None:
    """Return the digest of files, given by path relative to the package; None if there are no files."""
    listing = sorted(
        (path.encode(), sha256(contents.replace(b"\r\n", b"\n")).hexdigest())
        for path, contents in files.items()
        if _counts(path)
    )
    if not listing:
        return None
    return sha256(b"".join(f"{each}  ".encode() + path + b"\n" for path, each in listing)).hexdigest()


def commit_digest(commit: str, repository: Path) -> str | None:
    """Return the digest of a commit's sources, or None if git, the repository, the commit or its package is missing."""
    tree = tree_of([commit], repository).get(commit)
    return None if tree is None else tree_digest(tree, repository)


def tree_of(commits: Iterable[str], repository: Path) -> dict[str, str]:
    """Return the git tree of the package by commit; commits that are unknown or without the package are left out."""
    names = list(commits)
    wanted = "".join(f"{name}:{PACKAGE}\n" for name in names).encode()
    told = git(repository, "cat-file", "--batch-check=%(objecttype) %(objectname)", given=wanted)
    lines = [] if told is None else told.decode().splitlines()
    found = {}
    for name, line in zip(names, lines, strict=False):
        kind, _, tree = line.partition(" ")
        if kind == "tree":
            found[name] = tree
    return found


def tree_digest(tree: str, repository: Path) -> str | None:
    """Return the digest of a git tree of the package, or None if git fails."""
    listing = git(repository, "ls-tree", "-r", "-z", "--full-tree", tree)
    if listing is None:
        return None
    blobs = {}
    for entry in listing.split(b"\0"):
        about, _, path = entry.partition(b"\t")
        if path and _counts(path.decode()):
            blobs[path.decode()] = about.split()[2]
    contents = git(repository, "cat-file", "--batch", given=b"".join(blob + b"\n" for blob in blobs.values()))
    if contents is None:
        return None
    files, at = {}, 0
    for name in blobs:
        end = contents.index(b"\n", at)
        size = int(contents[at:end].split()[-1])
        files[name] = contents[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return digest(files)


def git(repository: Path, *arguments: str, given: bytes = b"") -> bytes | None:
    """Return the output of git, or None if git or the repository is missing or the command fails."""
    command = ["git", "-C", str(repository), *arguments]
    try:
        return subprocess.run(command, input=given, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _counts(path: str) -> bool:
    return not any(part == "__pycache__" or part.startswith(".") for part in PurePosixPath(path).parts)


def main(arguments: list[str]) -> str | None:
    """Return the digest that the command prints, or None."""
    return commit_digest(arguments[0], Path()) if arguments else source_digest()


if __name__ == "__main__":
    found = main(sys.argv[1:])
    print(found if found is not None else "no sources of swila were found")
    sys.exit(found is None)
