"""Digests of sources: the same from files and from commits, and results that name a commit are checked by them."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools.tables import provenance
from tools.tables.conditions import conditions
from tools.tables.provenance import UNDIGESTED, check, environments

from swila import environment
from swila.source_digest import commit_digest, digest, git, main, source_digest

ROOT = Path(__file__).parents[2]
SOURCES = {"__init__.py": b"x = 1\n", "ops/kernel.cu": b"int x;\n", "py.typed": b""}
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def write(folder, files):
    for path, contents in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(contents)


def test_every_file_and_its_place_counts(tmp_path):
    write(tmp_path, SOURCES)
    before = source_digest(tmp_path)
    assert before == digest(SOURCES)
    for path in SOURCES:
        assert digest(SOURCES | {path: b"other"}) != before, f"contents of {path}"
        assert digest({path + "x" if path == name else name: SOURCES[name] for name in SOURCES}) != before
        assert digest({name: SOURCES[name] for name in SOURCES if name != path}) != before
    assert digest({"a": b"1", "b": b"2"}) != digest({"a": b"2", "b": b"1"})
    assert digest({}) is None
    assert source_digest(tmp_path / "nothing") is None


def test_what_does_not_count(tmp_path):
    """Compiled and hidden files, line endings, the order of listing, and where the package is."""
    write(tmp_path / "here", SOURCES)
    write(tmp_path / "there", dict(reversed(SOURCES.items())))
    write(tmp_path / "there", {"__init__.py": b"x = 1\r\n", "ops/__pycache__/kernel.pyc": b"1", ".DS_Store": b"2"})
    assert source_digest(tmp_path / "here") == source_digest(tmp_path / "there")


def test_anyone_can_recompute_it(tmp_path):
    """The command of the docstring."""
    if sys.platform != "linux":
        pytest.skip("needs GNU find and sha256sum")
    write(tmp_path, {**SOURCES, "__pycache__/a.pyc": b"1", "B.py": b"", "a/b.py": b"", "a_b.py": b"2", ".hidden": b"3"})
    command = (
        "find . -type f -not -path '*/__pycache__/*' -not -path '*/.*' -printf '%P\\n' "
        "| LC_ALL=C sort | xargs sha256sum | sha256sum"
    )
    found = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert found.split()[0] == source_digest(tmp_path)


def test_environment_has_the_digest_of_the_files_that_run():
    found = environment.environment()["sources"]
    package = Path(environment.__file__).parent
    files = [path for path in package.rglob("*") if path.is_file()]
    assert found == digest({path.relative_to(package).as_posix(): path.read_bytes() for path in files})
    assert len(found) == 64
    assert {path.suffix for path in files} >= {".py", ".cu", ".cuh", ".typed"}


class Repository:
    """A repository with a package, and results of it."""

    def __init__(self, root):
        self.root = root
        (root / "results").mkdir(parents=True)
        self.git("init", "-q")
        self.commits = [self.commit({"__init__.py": b"x = 1\n"}), self.commit({"__init__.py": b"x = 2\n"})]

    def git(self, *arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(self.root), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self, files):
        write(self.root / "src/swila", files)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "more")
        return self.git("rev-parse", "HEAD")[:12]

    def digest(self):
        return source_digest(self.root / "src/swila")

    def result(self, commit, sources, name="new.json", **more):
        where = {"commit": commit, "date": "2027-01-01"} | ({"sources": sources} if sources else {})
        path = self.root / "results" / name
        path.write_text(json.dumps({"environment": where, "rows": [1.5]} | more, indent=2) + "\n")
        return path


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "repository")


@needs_git
def test_the_commit_that_runs(repository, monkeypatch):
    monkeypatch.setattr(environment, "__file__", str(repository.root / "src/swila/environment.py"))
    assert environment.commit() == repository.commits[1]
    (repository.root / "src/swila/__init__.py").write_bytes(b"x = 3\n")
    assert environment.commit() == repository.commits[1] + "-dirty"
    inside = repository.root / "venv/lib/swila/environment.py"  # installed in a folder of another repository
    inside.parent.mkdir(parents=True)
    monkeypatch.setattr(environment, "__file__", str(inside))
    assert environment.commit() is None


@needs_git
def test_files_and_commits_agree(repository):
    first, second = repository.commits
    assert commit_digest(second, repository.root) == repository.digest()
    assert commit_digest(first, repository.root) == digest({"__init__.py": b"x = 1\n"})
    assert commit_digest("0" * 12, repository.root) is None
    assert commit_digest(first, repository.root.parent) is None
    write(repository.root / "src/swila", {"untracked.py": b""})
    assert commit_digest(second, repository.root) != repository.digest()


@needs_git
def test_results_of_the_commit_they_name_pass(repository):
    path = repository.result(repository.commits[1], repository.digest())
    before = path.read_text()
    assert check(repository.root) == []
    assert path.read_text() == before


@needs_git
@pytest.mark.parametrize("named", ["first", "dirty", None, "0123456789ab"])
def test_a_commit_is_found_by_its_sources(repository, named):
    """The copy on another machine had a stale git folder, changes outside the package, or none at all."""
    first, second = repository.commits
    named = {"first": first, "dirty": f"{second}-dirty"}.get(named, named)
    path = repository.result(named, repository.digest())
    assert check(repository.root) == [f"new.json: commit {second} instead of {named}, found by its sources"]
    record = json.loads(path.read_text())
    assert record["environment"]["commit"] == second
    assert record["rows"] == [1.5]
    assert check(repository.root) == []


@needs_git
def test_of_commits_with_the_same_sources_the_named_one_stays(repository):
    (repository.root / "README.md").write_text("more")
    third = repository.commit({})
    path = repository.result(third, repository.digest())
    assert check(repository.root) == []
    assert json.loads(path.read_text())["environment"]["commit"] == third
    repository.result(None, repository.digest())
    assert "commit " + repository.commits[1] in check(repository.root)[0], "the oldest"


@needs_git
@pytest.mark.parametrize("of", ["the first", "another"])
def test_sources_of_no_commit_are_an_error(repository, of):
    environment = {"commit": repository.commits[0], "sources": "f" * 64}
    if of == "the first":
        repository.result(repository.commits[0], "f" * 64)
    else:
        repository.result(repository.commits[1], repository.digest(), other_environments=[environment])
    message = rf"new\.json must come from committed sources.*ffffffffffff.*{repository.commits[0]}"
    with pytest.raises(ValueError, match=message):
        check(repository.root)


@needs_git
def test_results_without_a_digest_are_an_error_unless_excepted(repository, monkeypatch):
    repository.result(repository.commits[1], None)
    with pytest.raises(ValueError, match=r"new\.json must name the sources it comes from"):
        check(repository.root)
    monkeypatch.setitem(UNDIGESTED, "new.json", {"2027-01-01"})
    assert check(repository.root) == []
    monkeypatch.setitem(UNDIGESTED, "new.json", {"2026-12-31"})
    with pytest.raises(ValueError, match=r"new\.json"):  # the file was made again: by its date it is another one
        check(repository.root)


@needs_git
def test_where_there_is_no_history_nothing_is_wrong(repository, tmp_path):
    first, _ = repository.commits
    repository.result(first, digest({"__init__.py": b"x = 1\n"}))
    repository.commit({})
    shutil.copytree(repository.root / "results", tmp_path / "tarball" / "results")
    (told,) = check(tmp_path / "tarball")
    assert told == f"new.json: commit {first} not checked: no git, or no repository"

    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth", "1", repository.root.as_uri(), str(shallow)], check=True)
    (told,) = check(shallow)
    assert told == f"new.json: commit {first} not checked: the clone is shallow"

    inside = repository.root / "vendored"
    shutil.copytree(tmp_path / "tarball", inside)
    assert check(inside) == [], "the commit is known there"
    write(inside / "results", {"new.json": b'{"environment": {"commit": "abc", "sources": "ffffffffffffffff"}}'})
    assert check(inside) == ["new.json: commit abc not checked: the results are not in the repository that git found"]


def test_without_git_nothing_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "results").mkdir()
    record = {"environment": {"commit": "0123456789ab", "sources": "f" * 64}}
    (tmp_path / "results" / "new.json").write_text(json.dumps(record))
    assert git(tmp_path, "--version") is None
    assert check(tmp_path) == ["new.json: commit 0123456789ab not checked: no git, or no repository"]


def test_committed_results_are_what_they_say(tmp_path):
    """And the list of exceptions has none too many."""
    shutil.copytree(ROOT / "results", tmp_path / "results")  # check may write
    if (ROOT / ".git").exists():
        (tmp_path / ".git").write_text(_gitdir())
    assert not [line for line in check(tmp_path) if "instead of" in line], "run `make tables`"
    for name, dates in UNDIGESTED.items():
        found = environments(json.loads((ROOT / "results" / name).read_text()))
        assert {where["date"] for where in found if "sources" not in where} == dates, name


def _gitdir():
    found = git(ROOT, "rev-parse", "--absolute-git-dir")
    return f"gitdir: {(found or b'').decode().strip()}\n"


def test_tables_are_not_written_from_results_of_nowhere(tmp_path, monkeypatch):
    for name in ("README.md", "docs"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "results", tmp_path / "results")
    (tmp_path / "results" / "new.json").write_text('{"environment": {"commit": "0123456789ab"}}')
    before = (tmp_path / "docs/benchmarks.md").read_text().replace("`numba`", "`other`")
    (tmp_path / "docs/benchmarks.md").write_text(before)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"error: .*new\.json must name the sources"):
        runpy.run_module("tools.tables")
    assert (tmp_path / "docs/benchmarks.md").read_text() == before


def test_the_digest_stands_beside_the_commit():
    where = environment.environment() | {"commit": "abc"}
    record = {"environment": where, "device": "cpu"}
    assert conditions(record).endswith(f"commit `abc` (sources `{where['sources'][:12]}`)")
    older = {key: value for key, value in where.items() if key != "sources"}
    assert conditions({"environment": older, "device": "cpu"}).endswith("commit `abc`")


@needs_git
def test_the_module_prints_digests(repository, monkeypatch):
    monkeypatch.chdir(repository.root)
    assert main([]) == source_digest()
    assert main([repository.commits[1]]) == repository.digest()
    assert main(["0" * 40]) is None


@needs_git
@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("known", [True, False])
def test_the_exit_status_of_the_module(repository, monkeypatch, capsys, known):
    monkeypatch.chdir(repository.root)
    monkeypatch.setattr(sys, "argv", ["source_digest", repository.commits[1] if known else "0" * 40])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("swila.source_digest", run_name="__main__")
    assert bool(ended.value.code) is not known
    assert capsys.readouterr().out.strip() == (repository.digest() if known else "no sources of swila were found")


def test_provenance_names_its_list_by_date():
    assert all(date < "2026-11-17" for dates in provenance.UNDIGESTED.values() for date in dates)
