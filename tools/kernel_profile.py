"""Profile one launch of a CUDA kernel by Nsight Compute, and list where its warps spend their time.

    python tools/kernel_profile.py backward_split temporal:8,4096,8

Instructions that are executed equally often and lie between two barriers or branches form a block. For each block with
a share of the samples: its place in the machine code, number of instructions, how often it is executed, its share of
the samples of all warps, and what the warps of these samples waited for. ``no_inst`` is the instruction cache,
``selected`` an instruction that was issued. With ``--lines FIRST LAST`` the instructions themselves follow. Needs an
NVIDIA GPU and ``ncu``.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLES = "Warp Stall Sampling (All Samples)"
SECTIONS = ("SourceCounters", "WarpStateStats", "SchedulerStats", "InstructionStats", "SpeedOfLight")
SUMMARY = ("Duration", "SM Frequency", "Elapsed Cycles", "One or More Eligible", "Avg. Executed Instructions")
LEAST = 0.002  # share of the samples from which on a block is listed


@dataclass(frozen=True)
class Instruction:
    """A machine instruction: its text, how often a warp executed it, samples of warps at it, and their reasons."""

    text: str
    executed: int
    samples: int
    stalls: dict[str, int]


def read(text: str) -> list[Instruction]:
    """Return the instructions of ``ncu --page source --print-source sass --csv``."""
    rows = list(csv.reader(io.StringIO(text)))
    start = next(i for i, row in enumerate(rows) if "Source" in row and SAMPLES in row)
    names = rows[start]
    at = {name: i for i, name in enumerate(names)}
    reasons = [name for name in names if name.startswith("stall_") and "Not Issued" not in name]
    return [
        Instruction(
            row[at["Source"]].strip(),
            int(row[at["Instructions Executed"]]),
            int(row[at[SAMPLES]]),
            {reason.removeprefix("stall_"): int(row[at[reason]]) for reason in reasons},
        )
        for row in rows[start + 1 :]
    ]


def blocks(code: Sequence[Instruction]) -> list[tuple[int, int]]:
    """Return first and last + 1 of the blocks, in order."""
    bounds = [0]
    for i in range(1, len(code)):
        apart = code[i].executed != code[i - 1].executed
        if apart or re.search(r"\bBAR\b", code[i].text) or re.search(r"\bBRA\b", code[i - 1].text):
            bounds.append(i)
    return list(zip(bounds, [*bounds[1:], len(code)], strict=True))


def reasons(code: Sequence[Instruction], most: int = 5) -> str:
    """Return the most frequent reasons of the samples of some instructions, with their shares in percent."""
    samples = sum(each.samples for each in code)
    totals = {name: sum(each.stalls[name] for each in code) for name in code[0].stalls}
    first = sorted(totals.items(), key=lambda item: -item[1])[:most]
    return " ".join(f"{name}:{100 * count / max(samples, 1):.0f}" for name, count in first if count)


def report(code: Sequence[Instruction], lines: tuple[int, int] | None = None) -> list[str]:
    """Return the lines of the report."""
    whole = max(sum(each.samples for each in code), 1)
    told = ["  from    to instructions  executed  samples  reasons"]
    for first, last in blocks(code):
        samples = sum(each.samples for each in code[first:last])
        if samples >= LEAST * whole:
            share = f"{100 * samples / whole:.1f} %"
            place = f"{first:6d}{last:6d}{last - first:13d}{code[first].executed:10d}"
            told.append(f"{place}{share:>9}  {reasons(code[first:last])}")
    if lines:
        told += [f"{i:6d}{code[i].samples:8d}  {code[i].text}  {reasons(code[i : i + 1], 3)}" for i in range(*lines)]
    return told


def main() -> None:
    """Run a call under ncu and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", help="name of the kernel, as in docs/kernels.md")
    parser.add_argument("case", help="VARIANT:B,T,H, or VARIANT:B,T,H:s with statistics, as for tools/kernel_times.py")
    parser.add_argument("--lines", nargs=2, type=int, metavar=("FIRST", "LAST"), help="instructions to list")
    parser.add_argument("--csv", type=Path, help="also keep what ncu found, or read it if the file is there")
    given = parser.parse_args()
    if given.csv and given.csv.exists():
        text = given.csv.read_text()
    else:
        text = profile(given.kernel, given.case)
        if given.csv:
            given.csv.write_text(text)
    print("\n".join(report(read(text), given.lines)))


def profile(kernel: str, case: str) -> str:
    """Return ncu's table of the second launch of a kernel; its summary is printed."""
    here = Path(__file__).parent
    run = f"import sys; sys.path.insert(0, {str(here)!r}); import kernel_times as k; k.times(k.Case.parse({case!r}))"
    with tempfile.TemporaryDirectory() as folder:
        found = str(Path(folder) / "found.ncu-rep")
        command = ["ncu", "--clock-control", "none", "-f", "-o", found, "-k", f"regex:^swila_{kernel}$"]
        command += ["--launch-skip", "1", "--launch-count", "1"]
        command += [word for section in SECTIONS for word in ("--section", section)]
        subprocess.run([*command, sys.executable, "-c", run], check=True, stdout=subprocess.DEVNULL)
        pages = ["ncu", "--import", found, "--page"]
        details = subprocess.run([*pages, "details"], check=True, capture_output=True, text=True)
        print("\n".join(line.strip() for line in details.stdout.splitlines() if line.strip().startswith(SUMMARY)))
        source = [*pages, "source", "--print-source", "sass", "--csv"]
        return subprocess.run(source, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
