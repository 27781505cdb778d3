"""The training package serves every kind of training, so it knows none of them."""

import ast
from pathlib import Path

import pytest

import swila.training

FILES = sorted(Path(swila.training.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_imports_neither_tasks_nor_experiments(file):
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert not any(name.startswith(("swila.tasks", "swila.experiments", "swila.cli")) for name in names), names
