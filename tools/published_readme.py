"""Build hook: the README of the package's metadata has absolute links, because package indexes show it by itself.

``[project.urls] Repository`` in pyproject.toml is the address that relative links are resolved against.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

BRANCH = "main"


def absolute(text: str, repository: str) -> str:
    """Return Markdown with relative links resolved: images to the file itself, others to its page in the repository."""
    return re.sub(
        r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)",
        lambda m: f"{m[1]}[{m[2]}]({repository}/{'raw' if m[1] else 'blob'}/{BRANCH}/{m[3]})",
        text,
    )


class PublishedReadme(MetadataHookInterface):
    """Sets the dynamic field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README with absolute links."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
