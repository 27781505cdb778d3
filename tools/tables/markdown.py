"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_RULES = {"l": "---", "r": "---:"}


def markdown(columns: str, headings: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Return a table with a note below it.

    Args:
        columns: Alignment of each column, a letter ``l`` or ``r``.
        headings: Headings of the columns.
        rows: Cells of each row.
        note: Paragraph below the table, or an empty string.
    """
    rule = [_RULES[letter] for letter in columns]
    lines = [f"| {' | '.join(headings)} |", f"|{'|'.join(rule)}|"]
    for row in rows:
        assert len(row) == len(headings) == len(rule), f"{len(row)} cells under {len(headings)} headings"
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", note] if note else lines)
