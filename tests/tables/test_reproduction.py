"""docs/reproduction.md has every claim of the paper, and says no more than the committed results show."""

import json

from claims import ROOT, about
from tools.tables import tables


def test_the_papers_places_and_claims_are_all_there():
    """Every section, table and figure of the paper with a claim has a row in docs/reproduction.md."""
    rows = [
        line.split(" | ") for line in (ROOT / "docs/reproduction.md").read_text().splitlines() if line.startswith("| ")
    ]
    places = " ".join(row[0] for row in rows)
    sections = ["abstract", "3.1", "3.2", "3.3", "3.4", "3.5", "4.1", "4.2", "5.1", "5.2", "5.3", "5.4", "5.5"]
    shown = [
        "table 1",
        "table 2",
        "figures 1C",
        "figure 2a",
        "figure 2b",
        *(f"figure S{number}" for number in range(2, 6)),
    ]
    appendices = [f"App. {part}" for part in ["B.1", "B.4", "D.1", "D.2", "D.3", "E.2", "E.5"]]
    for place in (*sections, *shown, *appendices):
        assert place in places, place
    unrun = [row for row in rows if row[0].strip("| ").startswith(("5.3", "5.4", "5.5"))]
    assert len(unrun) >= 15
    assert all(row[2].startswith("not run") for row in unrun)


def test_committed_verdicts():
    """What the docs may say at most of the committed results."""
    found = tables(ROOT / "results")["docs/reproduction.md"]
    assert about(found["softmax-regression-claims"], "At every state").startswith(
        "**no**, not at B=1; elsewhere yes, with one seed"
    )
    assert about(found["softmax-regression-claims"], "balance heads").startswith("yes, with ")
    assert about(found["cdar-claims"], "smallest configuration").startswith(
        "yes, with 6 runs of 4 learning rates for Temporal SwiLA"
    )
    assert "explored on Temporal SwiLA alone" in about(found["cdar-claims"], "smallest configuration")
    record = json.loads((ROOT / "results/cdar-paper.json").read_text())
    assert {run["planned_steps"] / run["steps_per_epoch"] for run in record["runs"].values()} == {15620 / 1562.5}
