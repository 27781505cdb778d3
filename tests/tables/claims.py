"""Reading tables of claims."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAPER_RATES = (3.16e-4, 1e-3, 3.16e-3, 1e-2)


def verdicts(table):
    """The third column of a table of claims, by a part of the second."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:] if line.startswith("|")]
    assert all(len(row) == 3 for row in rows)
    assert all(place for place, *_ in rows), "each claim has its place in the paper"
    return {claim: found for _, claim, found in rows}


def about(table, words):
    ((_, found),) = [item for item in verdicts(table).items() if words in item[0]]
    return found
