"""The import arrows of DESIGN.md are those of the code: between the parts of the package, and within ``ops``."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "swila"
DESIGN = (ROOT / "DESIGN.md").read_text()
# Lowest first: a part may import those before it.
LAYERS = [
    {"_version", "source_digest", "tasks", "data"},
    {"ops", "environment", "plots"},
    {"layers", "testing"},
    {"models"},
    {"generation", "training"},
    {"pretraining", "evaluation", "distillation", "experiments"},
    {"benchmarks"},
    {"cli"},
    {"__main__"},
]


def part_of(path: Path, base: Path) -> str:
    first = path.relative_to(base).parts[0]
    return first.removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    """Every module of ours that a file imports, at any depth and under any condition."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name == "swila" or name.startswith("swila.")}


def arrows(base: Path, prefix: str) -> dict[str, set[str]]:
    """Part of the package at ``base`` -> the other parts that its files import."""
    parts = {part_of(path, base) for path in base.rglob("*.py")} - {"__init__"}
    found: dict[str, set[str]] = {part: set() for part in parts}
    for path in base.rglob("*.py"):
        part = part_of(path, base)
        if part == "__init__":
            continue
        for name in imported_modules(path):
            if name.startswith(f"{prefix}."):
                target = name.removeprefix(f"{prefix}.").split(".")[0]
                if target in parts and target != part:
                    found[part].add(target)
    return found


def documented(heading: str) -> dict[str, set[str]]:
    """The table below a heading of DESIGN.md: its first column, and the names in its second."""
    section = DESIGN.split(f"\n{heading}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, flags=re.MULTILINE)
    assert rows, f"no table below {heading!r}"
    return {name: set(re.findall(r"`(\w+)`", imports)) for name, imports in rows}


def test_the_parts_of_the_package_import_what_the_design_says():
    found, told = arrows(PACKAGE, "swila"), documented("## Imports")
    planned = set(re.findall(r"^\| `(\w+)/`", DESIGN.split("\n## Planned parts\n")[1], flags=re.MULTILINE))
    assert planned
    assert set(found) - {"_version", "__main__"} == set(told)
    assert not planned & set(found), "a planned part exists: move it to the table of imports"
    for part, imports in told.items():
        assert found[part] - {"_version"} == imports, f"imports of {part}"


def test_the_modules_of_ops_import_what_the_design_says():
    found, told = arrows(PACKAGE / "ops", "swila.ops"), documented("### Within `ops`")
    assert set(found) == set(told)
    for part, imports in told.items():
        assert found[part] == imports, f"imports of ops.{part}"


@pytest.mark.parametrize("part", sorted(arrows(PACKAGE, "swila")))
def test_arrows_go_one_way(part):
    """Whatever DESIGN.md says, nothing imports what is built on it."""
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    for target in arrows(PACKAGE, "swila")[part]:
        assert level[target] < level[part], f"{part} imports {target}"


def test_tasks_and_data_import_nothing_of_ours():
    for part in ("tasks", "data"):
        for path in (PACKAGE / part).rglob("*.py"):
            assert {name.split(".")[1] for name in imported_modules(path)} <= {part}, path


def test_training_stands_without_tasks_and_experiments():
    """Pretraining builds on ``training``, and needs no synthetic task."""
    assert not arrows(PACKAGE, "swila")["training"] & {"tasks", "experiments", "plots"}
