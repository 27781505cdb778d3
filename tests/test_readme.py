"""What the README says is so: its code runs, its commands exist, its numbers come from results files."""

import re
from pathlib import Path

import pytest

from swila.tables import insert, tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_run(code):
    exec(compile(code, "README.md", "exec"), {})


def test_commands_are_targets():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for command in re.findall(r"make (\w+)", README):
        assert command in targets


def test_numbers_come_from_results():
    for name, table in tables(ROOT / "results").items():
        assert insert(README, name, table) == README, "run `make tables`"


def test_tree_names_what_is_there():
    tree = re.search(r"## The tree\n\n```\n(.*?)```", README, re.S).group(1)
    package = ROOT / "src" / "swila"
    for name in re.findall(r"^ {2,4}(\S+?)/? ", tree, re.M):
        assert any(package.rglob(name)), name


def test_links_lead_somewhere():
    for document in ROOT.glob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (ROOT / link).exists(), f"{document.name}: {link}"
