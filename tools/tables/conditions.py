"""Where results were measured, and how many runs they come from, in words."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


def conditions(record: dict[str, Any], packages: Collection[str] | None = None) -> str:
    """Hardware, versions and commit of a results file, and the digest of the sources where it is known.

    Args:
        record: The results.
        packages: Names of the packages whose versions are given beside torch's; all by default.
    """
    where = record["environment"]
    on_gpu = record["device"].startswith("cuda")
    machine = ", ".join(where["gpus"]) if on_gpu else f"{where['cpu']} ({where['cores']} cores)"
    named = {name: version for name, version in where["packages"].items() if packages is None or name in packages}
    if packages is None:
        named["Python"] = where["python"]
    versions = "".join(f", {name} {version}" for name, version in named.items())
    found = dict.fromkeys(_commit(each) for each in (where, *record.get("other_environments", [])))
    commits = ("commit " if len(found) == 1 else "commits ") + ", ".join(found)
    return f"{machine}, torch {where['torch']}{versions}, {commits}"


def _commit(where: dict[str, Any]) -> str:
    sources = where.get("sources")
    return f"`{where['commit']}`" + (f" (sources `{sources[:12]}`)" if sources else "")


def under_which(record: dict[str, Any]) -> str:
    """Number and duration of the runs, names of the unfinished ones, and the conditions."""
    runs = record["runs"].values()
    seconds = [run["seconds"] for run in runs if "seconds" in run]
    begun = [run["name"] for run in runs if "best" not in run and run.get("step")]
    unfinished = f" Unfinished: {', '.join(begun)}." if begun else ""
    lengths = f"{min(seconds):.0f} to {max(seconds):.0f} s each"
    return f"{len(seconds)} finished runs of {lengths}, several at a time.{unfinished} {conditions(record)}."
