"""Where results were measured, and how many runs they come from, in words."""

from __future__ import annotations

from typing import Any


def conditions(record: dict[str, Any]) -> str:
    """Where results were measured: hardware, versions, commit, and the digest of the sources where it is known."""
    where = record["environment"]
    on_gpu = record["device"].startswith("cuda")
    machine = ", ".join(where["gpus"]) if on_gpu else f"{where['cpu']} ({where['cores']} cores)"
    packages = "".join(f", {name} {version}" for name, version in where["packages"].items())
    found = dict.fromkeys(_commit(each) for each in (where, *record.get("other_environments", [])))
    commits = ("commit " if len(found) == 1 else "commits ") + ", ".join(found)
    return f"{machine}, torch {where['torch']}{packages}, Python {where['python']}, {commits}"


def _commit(where: dict[str, Any]) -> str:
    sources = where.get("sources")
    return f"`{where['commit']}`" + (f" (sources `{sources[:12]}`)" if sources else "")


def under_which(record: dict[str, Any]) -> str:
    """How many runs of which length there were, which are not over, and where."""
    runs = record["runs"].values()
    seconds = [run["seconds"] for run in runs if "seconds" in run]
    begun = [run["name"] for run in runs if "best" not in run and run["curve"]]
    unfinished = f" Begun, but not over: {', '.join(begun)}." if begun else ""
    lengths = f"{min(seconds):.0f} to {max(seconds):.0f} s each"
    return f"{len(seconds)} runs of {lengths}, several at a time.{unfinished} {conditions(record)}."
