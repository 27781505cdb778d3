"""What the README says is so: its code runs, its commands exist, its numbers come from results files."""

import re
import textwrap
from pathlib import Path

import pytest
from tools.tables import insert, tables

from swila.layers import registry

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


def test_tree_names_what_is_there():
    tree = re.search(r"## The tree\n\n```\n(.*?)```", README, re.S).group(1)
    package = ROOT / "src" / "swila"
    for name in re.findall(r"^ {2,4}(\S+?)/? ", tree, re.M):
        assert any(package.rglob(name)), name


def test_links_lead_somewhere():
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
