"""Where results were measured, in words."""

from __future__ import annotations

from typing import Any


def conditions(record: dict[str, Any]) -> str:
    """Where results were measured: hardware, versions, commit."""
    where = record["environment"]
    on_gpu = record["device"].startswith("cuda")
    machine = ", ".join(where["gpus"]) if on_gpu else f"{where['cpu']} ({where['cores']} cores)"
    packages = "".join(f", {name} {version}" for name, version in where["packages"].items())
    found = dict.fromkeys(each["commit"] for each in (where, *record.get("other_environments", [])))
    commits = ("commit " if len(found) == 1 else "commits ") + ", ".join(f"`{commit}`" for commit in found)
    return f"{machine}, torch {where['torch']}{packages}, Python {where['python']}, {commits}"
