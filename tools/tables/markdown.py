"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_RULES = {"l": "---", "r": "---:"}


def markdown(columns: str, headings: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A table, and a note below it.

    Args:
        columns: a letter for each, ``l`` or ``r``: where its text stands.
        headings: of the columns.
        rows: cells.
        note: a paragraph, or nothing.
    """
    rule = [_RULES[letter] for letter in columns]
    lines = [f"| {' | '.join(headings)} |", f"|{'|'.join(rule)}|"]
    for row in rows:
        assert len(row) == len(headings) == len(rule), f"{len(row)} cells under {len(headings)} headings"
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", note] if note else lines)
