"""The CUDA kernels on the CPU under ThreadSanitizer, which reports accesses of shared memory that no barrier orders.

Every thread of a block is a fiber that ThreadSanitizer knows. Barriers order what it has seen; shuffles, products and
the scheduler of the emulator do not, as on a GPU. An asynchronous copy counts as a write when it is started and when it
is waited for.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from emulator.launcher import BUILD, Emulator, compiled
from swila.ops.cuda.arguments import Value
from swila.ops.cuda.compiler import arguments_of
from swila.ops.cuda.specialization import Specialization

OPTIONS = ("-std=c++17", "-O1", "-g", "-w", "-U_FORTIFY_SOURCE", "-fsanitize=thread", "-DRACES")
SETTINGS = "exitcode=0 history_size=4 suppress_equal_stacks=1"
RUN = ("setarch", "--addr-no-randomize")  # ThreadSanitizer needs addresses that it knows
PLACE = re.compile(r"#0 .*? (\S+\.cu):(\d+)")


def unusable() -> str | None:
    """Return why programs cannot be run under ThreadSanitizer here, or None."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "empty"
        try:
            build = ["g++", "-fsanitize=thread", "-x", "c++", "-", "-o", str(program)]
            subprocess.run(build, input="int main() {}", text=True, check=True, capture_output=True)
            subprocess.run([*RUN, str(program)], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            return str(error)
    return None


class RaceDetector(Emulator):
    """An emulator that also runs each kernel under ThreadSanitizer.

    Attributes:
        found: Name of each kernel that ran, with a line for each race: the two places in its source.
    """

    def __init__(self, **options: int) -> None:
        super().__init__(**options)
        self.found: list[tuple[str, list[str]]] = []

    def __call__(
        self, kernel: str, spec: Specialization, stats: bool, units: int, arguments: Mapping[str, Value], device: int
    ) -> None:
        """Run every block under ThreadSanitizer, then as usual."""
        defines, blocks = self.form(kernel, spec, stats, units)
        program = compiled(kernel, defines, OPTIONS)
        fields = [arguments[name] for name in (field.name for field in arguments_of(kernel).fields)]
        with tempfile.NamedTemporaryFile(dir=BUILD) as file:
            file.write(struct.pack("<qq", units * blocks, len(fields)) + b"".join(map(_packed, fields)))
            file.flush()
            command = [*RUN, str(program), file.name, str(self.order)]
            ran = subprocess.run(command, capture_output=True, text=True, env={"TSAN_OPTIONS": SETTINGS})
        if ran.returncode:
            raise RuntimeError(f"{kernel} ended with status {ran.returncode}: {ran.stderr[-2000:]}")
        self.found.append((kernel, races(ran.stderr)))
        super().__call__(kernel, spec, stats, units, arguments, device)


def races(report: str) -> list[str]:
    """Return the pairs of source lines that ThreadSanitizer reports, each once."""
    found = {}
    for race in report.split("WARNING: ThreadSanitizer: data race")[1:]:
        lines = [_line(path, int(number)) for path, number in PLACE.findall(race)[:2]]
        found[" | ".join(lines) or race] = None
    return list(found)


def _line(path: str, number: int) -> str:
    return Path(path).read_text().splitlines()[number - 1].strip()


def _packed(value: Value) -> bytes:
    if isinstance(value, Tensor):
        content = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return struct.pack("<qq", 1, len(content)) + content
    return struct.pack("<qq", 0, 0 if value is None else int(value))
