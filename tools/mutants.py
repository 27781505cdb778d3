"""Breaks the package in one place at a time, and reports the changes that no test notices.

The lists in ``tools/mutants/*.toml`` hold entries of this form::

    [[mutant]]
    name = "the auxiliary loss is never added"  # unique, says what is broken
    file = "src/swila/experiments/loop/updates.py"
    old = '''(loss + collect_auxiliary_loss(self.model))'''  # occurs exactly once in the file
    new = '''loss'''
    tests = ["tests/experiments/loop/test_updates.py"]  # arguments of pytest

Run ``python tools/mutants.py --help`` for the options.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tools" / "mutants"
TIME_LIMIT = 600.0  # seconds
FIELDS = ("name", "file", "old", "new", "tests")
NUMBA = "src/swila/ops/numba/"  # numba's cache does not see every change there


@dataclass(frozen=True)
class Mutant:
    """One change of the package, and the tests that must notice it."""

    part: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


class Outcome(NamedTuple):
    """``"caught"``, ``"survived"`` or ``"invalid"``, why, and after how long."""

    verdict: str
    reason: str
    seconds: float


def read_mutants(folder: Path = LISTS) -> list[Mutant]:
    """All mutants of all lists, or ValueError where an entry lacks a field."""
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        for number, entry in enumerate(tomllib.loads(path.read_text())["mutant"], 1):
            if set(entry) != set(FIELDS):
                raise ValueError(f"{path.name}: mutant {number} needs {', '.join(FIELDS)}, got {', '.join(entry)}")
            mutants.append(Mutant(path.stem, **{**entry, "tests": tuple(entry["tests"])}))
    return mutants


def problems_of(mutant: Mutant, root: Path = ROOT) -> list[str]:
    """What is wrong with an entry, in words."""
    found = []
    file = root / mutant.file
    if not file.is_file():
        found.append(f"file {mutant.file} does not exist")
    elif (count := file.read_text().count(mutant.old)) != 1:
        found.append(f"old must occur exactly once in {mutant.file}, it occurs {count} times")
    if mutant.old == mutant.new:
        found.append("old and new are the same")
    paths = [argument.split("::")[0] for argument in mutant.tests if argument.startswith("tests/")]
    found += [f"{path} does not exist" for path in paths if not (root / path).exists()]
    if not paths:
        found.append("tests names no file under tests/")
    return found


class Copy:
    """A copy of the tree in which one worker runs tests."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.temporary, self.compiled = folder / "tree", folder / "tmp", folder / "numba"
        self.temporary.mkdir(parents=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)

    def try_out(self, mutant: Mutant, running: set[subprocess.Popen[str]]) -> Outcome:
        """Apply the mutant, run its tests, and take it back."""
        file = self.tree / mutant.file
        text, times = file.read_text(), file.stat()
        try:
            file.write_text(text.replace(mutant.old, mutant.new))
            if mutant.file.startswith(NUMBA):
                shutil.rmtree(self.compiled, ignore_errors=True)
            outcome = self.run_tests(mutant.tests, running)
        finally:
            file.write_text(text)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            if mutant.file.startswith(NUMBA):
                shutil.rmtree(self.compiled, ignore_errors=True)
        return outcome

    def run_tests(self, tests: Sequence[str], running: set[subprocess.Popen[str]]) -> Outcome:
        """Run pytest on the copy as it is."""
        environment = os.environ | {
            "PYTHONPATH": str(self.tree / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",  # a stale .pyc would hide a change of the same length
            "NUMBA_CACHE_DIR": str(self.compiled),
            "TMPDIR": str(self.temporary),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=self.tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running.add(process)
        try:
            output = process.communicate(timeout=TIME_LIMIT)[0]
        except subprocess.TimeoutExpired:
            stop(process)
            return Outcome("caught", "timed out", time.monotonic() - start)
        finally:
            running.discard(process)
        return Outcome(*judge(process.returncode, output), time.monotonic() - start)


def judge(status: int, output: str) -> tuple[str, str]:
    """The verdict on a mutant and its reason, from pytest's exit status and output."""
    lines = [line for line in output.splitlines() if line.strip()]
    last = lines[-1].strip("= ") if lines else "no output"
    if status == 0:
        return "survived", last
    if status == 1 and "CalledProcessError: Command '['g++'" not in output:
        return "caught", next((line for line in lines if line.startswith(("FAILED", "ERROR"))), last)
    return "invalid", f"pytest ended with status {status}: {last}"


def stop(process: subprocess.Popen[str]) -> None:
    """End a run of pytest and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_mutants(mutants: Sequence[Mutant], jobs: int, say: Callable[[str], None]) -> list[Outcome]:
    """The outcome of every mutant. The tests are run on the unchanged tree first; where they fail it is invalid."""
    distinct = list(dict.fromkeys(mutant.tests for mutant in mutants))
    running: set[subprocess.Popen[str]] = set()
    copies: queue.Queue[Copy] = queue.Queue()
    lock, done = threading.Lock(), 0

    def borrow(work: Callable[[Copy], Outcome], title: str, total: int) -> Outcome:
        nonlocal done
        copy = copies.get()
        try:
            outcome = work(copy)
        finally:
            copies.put(copy)
        with lock:
            done += 1
            say(f"{done:4d}/{total} {outcome.verdict:8s} {outcome.seconds:6.1f} s  {title}")
        return outcome

    def unchanged(tests: tuple[str, ...]) -> Outcome:
        def work(copy: Copy) -> Outcome:
            outcome = copy.run_tests(tests, running)
            return outcome._replace(verdict="passes" if outcome.verdict == "survived" else "fails")

        return borrow(work, " ".join(tests), len(distinct))

    def changed(mutant: Mutant) -> Outcome:
        def work(copy: Copy) -> Outcome:
            if problems := problems_of(mutant):
                return Outcome("invalid", "; ".join(problems), 0.0)
            if baseline[mutant.tests].verdict == "fails":
                return Outcome("invalid", f"unchanged, {baseline[mutant.tests].reason}", 0.0)
            return copy.try_out(mutant, running)

        return borrow(work, f"[{mutant.part}] {mutant.name}", len(mutants))

    with tempfile.TemporaryDirectory(prefix="swila-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        try:
            for number in range(jobs):
                copies.put(Copy(Path(folder) / str(number)))
            say(f"{len(distinct)} selections of tests on the unchanged tree")
            baseline = dict(zip(distinct, pool.map(unchanged, distinct), strict=True))
            say(f"{len(mutants)} mutants")
            done = 0
            return list(pool.map(changed, mutants))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                stop(process)
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen mutants; 1 if one survives or is invalid."""
    parser = argparse.ArgumentParser(description="Break the package one place at a time and run the tests.")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="copies of the tree to test at once")
    parser.add_argument("--only", metavar="SUBSTRING", help="only mutants whose name contains this")
    parser.add_argument("--list", action="append", metavar="NAME", help="only this list; may be given several times")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="also write the outcomes here")
    chosen = parser.parse_args(arguments)
    mutants = [
        mutant
        for mutant in read_mutants()
        if (not chosen.list or mutant.part in chosen.list) and (not chosen.only or chosen.only in mutant.name)
    ]
    if not mutants or chosen.jobs < 1:
        parser.error("no mutant is chosen" if not mutants else f"--jobs must be at least 1, got {chosen.jobs}")

    outcomes = run_mutants(mutants, chosen.jobs, lambda line: print(line, flush=True))
    rows: list[dict[str, Any]] = [
        asdict(mutant) | outcome._asdict() for mutant, outcome in zip(mutants, outcomes, strict=True)
    ]
    if chosen.out:
        chosen.out.write_text(json.dumps(rows, indent=1) + "\n")
    left = [row for row in rows if row["verdict"] != "caught"]
    for verdict, title in (("survived", "Survivors"), ("invalid", "Invalid")):
        named = [row for row in left if row["verdict"] == verdict]
        print(f"\n{title}: {len(named) or 'none'}")
        for row in named:
            print(f"  [{row['part']}] {row['name']}\n      {row['file']}: {row['reason']}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
