"""What the README says is so: its code runs, its commands exist, its numbers come from results files."""

import json
import re
import textwrap
from pathlib import Path

import pytest

from swila.layers import registry
from swila.tables import insert, tables
from swila.tables.recall import recall_claims
from swila.tables.softmax_regression import regression_claims

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = {
    f"{path.name}-{i}": textwrap.dedent(code)
    for path in DOCUMENTS
    for i, code in enumerate(re.findall(r"^ *```python\n(.*?)```", path.read_text(), re.S | re.M))
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name):
    known = dict(registry.MIXERS)
    try:
        exec(compile(EXAMPLES[name], name, "exec"), {"__name__": "example"})
    finally:  # what an example registers is not for the others
        registry.MIXERS.clear()
        registry.MIXERS.update(known)


def test_commands_are_targets():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for command in re.findall(r"make (\w+)", README):
        assert command in targets


def test_numbers_come_from_results():
    for document, found in tables(ROOT / "results").items():
        text = (ROOT / document).read_text()
        for name, table in found.items():
            assert insert(text, name, table) == text, "run `make tables`"


def test_verdicts_are_computed():
    """With other results the docs would say something else."""
    record = json.loads((ROOT / "results" / "softmax-regression.json").read_text())

    def verdicts(**scores):
        rows = [
            row | ({"scores": [scores[row["size"]]], "mean": scores[row["size"]]} if row["size"] in scores else {})
            for row in record["rows"]
        ]
        above, margin, _ = regression_claims(record | {"rows": rows}).splitlines()[2:]
        return re.search(r"\*\*(.*?)\*\*", above)[1], re.search(r"\*\*(.*?)\*\*", margin)[1]

    assert verdicts() == ("yes", "yes")
    assert verdicts(H1J2=0.1) == ("not at every one", "no")
    assert verdicts(H32=0.99) == ("not at every one", "yes")


def test_verdicts_of_recall_are_computed():
    record = json.loads((ROOT / "results" / "cdar-paper.json").read_text())

    def verdicts(*more, **changes):
        names = [f"{row['model']}{row['layers']}_{row['hidden_size']}".replace("-", "") for row in record["rows"]]
        rows = [row | {"best": changes.get(name, row["best"])} for name, row in zip(names, record["rows"], strict=True)]
        lines = recall_claims(record | {"rows": [*rows, *more]}).splitlines()[2:6]
        return [line.split(" | ")[1].split("**")[1] if "**" in line else "" for line in lines]

    claimed = {"temporalswila1_64": 0.98, "deltanet1_64": 0.2}
    assert verdicts(**claimed)[0] == "yes"
    assert verdicts(temporalswila1_64=0.9)[0] == "no"
    assert verdicts(**(claimed | {"deltanet1_64": 0.97}))[0] == "no", "not the only one"
    assert verdicts(**(claimed | {"deltanet1_32": 0.97}))[0] == "no", "not the smallest"
    deep = next(row for row in record["rows"] if row["model"] == "deltanet") | {
        "layers": 2,
        "state": 2048,
        "best": 0.99,
    }
    assert verdicts(deep, **claimed)[0] == "no", "two layers of less state"
    solved = {f"{model}1_{width}": 0.97 for model in ("swila", "deltanet", "dnmom") for width in (128, 256)}
    assert verdicts(**solved)[1] == "yes"
    assert verdicts(**{**solved, "dnmom1_128": 0.5, "dnmom1_256": 0.5})[1] == "not in these runs"
    depths = {f"attention{layers}_{width}": score for layers, score in ((1, 0.2), (2, 0.98)) for width in (32, 64, 128)}
    assert verdicts(**depths)[2] == "yes"
    assert verdicts(**(depths | {"attention1_64": 0.99}))[2] == "no"
    assert verdicts(**(depths | {"attention2_32": 0.3, "attention2_64": 0.3, "attention2_128": 0.3}))[2] == (
        "not in these runs"
    )


def test_tree_names_what_is_there():
    tree = re.search(r"## The tree\n\n```\n(.*?)```", README, re.S).group(1)
    package = ROOT / "src" / "swila"
    for name in re.findall(r"^ {2,4}(\S+?)/? ", tree, re.M):
        assert any(package.rglob(name)), name


def test_links_lead_somewhere():
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
