"""The lists of mutants are in order, and the runner tells caught, surviving and invalid ones apart."""

from collections import Counter

import pytest
from tools import mutants


def test_there_are_enough():
    assert len(mutants.read_mutants()) >= 100


def test_every_entry_can_be_applied():
    problems = {m.name: found for m in mutants.read_mutants() if (found := mutants.problems_of(m))}
    assert not problems


def test_names_are_unique():
    names = Counter(mutant.name for mutant in mutants.read_mutants())
    assert not [name for name, count in names.items() if count > 1]


def test_an_entry_with_a_field_missing_is_refused(tmp_path):
    (tmp_path / "one.toml").write_text('[[mutant]]\nname = "x"\nfile = "y"\nold = "a"\nnew = "b"\n')
    with pytest.raises(ValueError, match=r"one.toml: mutant 1 needs .*tests"):
        mutants.read_mutants(tmp_path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"file": "src/none.py"}, "file src/none.py does not exist"),
        ({"old": "twice"}, "it occurs 2 times"),
        ({"old": "never"}, "it occurs 0 times"),
        ({"new": "once"}, "old and new are the same"),
        ({"tests": ("tests/test_none.py::test_it",)}, "tests/test_none.py does not exist"),
        ({"tests": ("-k", "it")}, "tests names no file"),
        ({}, None),
    ],
)
def test_problems(tmp_path, changes, problem):
    (tmp_path / "code.py").write_text("once twice twice")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").touch()
    entry = {"file": "code.py", "old": "once", "new": "other", "tests": ("tests/test_it.py", "-k", "it")}
    found = mutants.problems_of(mutants.Mutant("part", "name", **(entry | changes)), tmp_path)
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]


@pytest.mark.parametrize(
    ("status", "output", "verdict"),
    [
        (0, "3 passed", "survived"),
        (1, "FAILED tests/test_it.py::test_it", "caught"),
        (1, "subprocess.CalledProcessError: Command '['g++', '-O1']' returned non-zero", "invalid"),
        (2, "ERROR tests/test_it.py - ImportError", "invalid"),
        (4, "usage error", "invalid"),
        (5, "no tests ran", "invalid"),
        (-11, "", "invalid"),
    ],
)
def test_verdicts(status, output, verdict):
    assert mutants.judge(status, output)[0] == verdict


def test_runner(tmp_path, monkeypatch):
    """On a tree of its own: what is caught, what survives, and where the tests fail before any change."""
    files = {
        "src/one.py": "VALUE = 1\nUNUSED = 2\n",
        "tests/test_one.py": "from one import VALUE\n\ndef test_value():\n    assert VALUE == 1\n",
        "tests/test_bad.py": "def test_bad():\n    assert False\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    mutants.subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer to load than this test to run
    good, bad = ("tests/test_one.py",), ("tests/test_bad.py",)
    entries = [
        mutants.Mutant("a", "value", "src/one.py", "VALUE = 1", "VALUE = 3", good),
        mutants.Mutant("a", "unused", "src/one.py", "UNUSED = 2", "UNUSED = 3", good),
        mutants.Mutant("a", "broken", "src/one.py", "VALUE = 1", "VALUE = (", good),
        mutants.Mutant("a", "bad", "src/one.py", "VALUE = 1", "VALUE = 3", bad),
        mutants.Mutant("a", "no test", "src/one.py", "VALUE = 1", "VALUE = 3", (*good, "-k", "nothing")),
    ]
    monkeypatch.setattr(mutants, "problems_of", lambda mutant: [])
    lines = []
    outcomes = mutants.run_mutants(entries, 1, lines.append)
    assert [outcome.verdict for outcome in outcomes] == ["caught", "survived", "invalid", "invalid", "invalid"]
    assert (tmp_path / "src/one.py").read_text() == files["src/one.py"]
    assert sum("caught" in line for line in lines) == 1
