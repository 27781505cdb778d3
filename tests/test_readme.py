"""README and docs: the code runs, commands exist, links lead somewhere, and numbers come from the results."""

import re
import shlex
import textwrap
from pathlib import Path

import pytest
from tools.tables import insert, tables
from typer.main import get_command

from swila.cli.app import app
from swila.layers import registry

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "DESIGN.md", *sorted((ROOT / "docs").glob("*.md"))]
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
    finally:  # mixers that an example registers are not for the others
        registry.MIXERS.clear()
        registry.MIXERS.update(known)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_commands_are_targets(document):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    for command in re.findall(r"(?:`|^)make ([a-z-]+)", document.read_text(), re.M):
        assert command in targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_swila_commands_and_options_exist(document):
    for block in re.findall(r"```sh\n(.*?)```", document.read_text(), re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("swila "):
                _check_command(shlex.split(line, comments=True)[1:])


def _check_command(words):
    command = get_command(app)
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands"), f"{words} is no command"
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        assert not word.startswith("-") or word.split("=")[0] in options, f"{command.name} has no option {word}"


def test_numbers_come_from_results():
    for document, found in tables(ROOT / "results").items():
        text = (ROOT / document).read_text()
        for name, table in found.items():
            assert insert(text, name, table) == text, "run `make tables`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for path, anchor in _links(document.read_text()):
        target = (document.parent / path) if path else document
        assert target.exists(), path
        if anchor:
            assert anchor in _anchors(target.read_text()), f"{path}#{anchor}"


def _links(text):
    return re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text)


def _anchors(text):
    """Anchors of a document's headings, as Markdown renderers of code hosts name them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_the_readme():
    linked = {path for path, _ in _links(README)}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked


def test_folders_in_contributing_exist():
    tree = re.search(r"## Folders\n\n```\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S).group(1)
    named = {line.split()[0] for line in tree.splitlines() if line.strip()}
    for name in named:
        assert (ROOT / name).is_dir(), name
    inside = {f"src/swila/{path.parent.name}/" for path in (ROOT / "src/swila").glob("*/__init__.py")}
    assert inside <= named
