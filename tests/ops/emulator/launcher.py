"""Launches the CUDA kernels on the CPU: block by block, with the threads of a block as fibers."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from swila.ops.cuda.arguments import Value
from swila.ops.cuda.compiler import arguments_of, source
from swila.ops.cuda.specialization import Specialization
from swila.ops.cuda.table import KERNELS

HERE = Path(__file__).parent
SHARED_LIMIT = 232448
BUILD = Path(tempfile.gettempdir()) / "swila-emulator"
OPTIONS = ("-std=c++17", "-Og", "-w", "-U_FORTIFY_SOURCE", "-shared", "-fPIC")
Defines = tuple[tuple[str, str], ...]


def compiled(kernel: str, defines: Defines, options: tuple[str, ...]) -> Path:
    """Return the file that g++ makes of a kernel, from the same text as for a GPU; its source lies beside it."""
    ours = [path.read_text() for path in sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp")])]
    text = source(kernel)
    key = hashlib.sha256(repr((kernel, defines, options, text, ours)).encode()).hexdigest()[:20]
    made, cuda = BUILD / f"{key}.so", BUILD / f"{key}.cu"
    if not made.exists():
        BUILD.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            written, built = Path(folder) / f"{kernel}.cu", Path(folder) / "built.so"
            written.write_text(text)
            written.rename(cuda)
            macros = [f"-D{name}={value}" for name, value in defines]
            macros += [f'-DSOURCE="{cuda}"', f"-DKERNEL_NAME=swila_{kernel}"]
            command = ["g++", *options, *macros, "-x", "c++", str(HERE / "emulate.cpp"), "-o", str(built)]
            subprocess.run(command, check=True)
            built.rename(made)
    return made


@cache
def build(kernel: str, defines: Defines) -> ctypes.CDLL:
    """Return a shared library with the kernel, compiled for these macros."""
    return ctypes.CDLL(str(compiled(kernel, defines, OPTIONS)))


class Emulator:
    """A launcher that runs kernels on the CPU.

    Args:
        order: Order in which threads run between barriers: 0, 1 or 2; with 3 + n, warp n runs where all others wait.
        warps: Largest number of warps per block, for kernels that may have fewer.
        limit: Bytes of shared memory per block.
        processors: Number of multiprocessors, over which kernels spread.
    """

    def __init__(self, order: int = 0, warps: int = 8, limit: int = SHARED_LIMIT, processors: int = 4) -> None:
        self.order, self.warps, self.limit, self._processors = order, warps, limit, processors

    def form(self, kernel: str, spec: Specialization, stats: bool, units: int) -> tuple[Defines, int]:
        """Return the macros that a kernel is compiled for, and the number of blocks per unit and head."""
        form = KERNELS[kernel]
        warps = form.most_warps(spec, units, self._processors)
        if form.fewer_warps:
            warps = min(warps, self.warps)
        while True:
            defines = tuple(sorted(spec.defines(warps, SHARED_LIMIT=self.limit, STATS=int(stats)).items()))
            needed = build(kernel, defines).shared_bytes()
            if needed <= self.limit:
                return defines, form.blocks(spec, warps)
            assert form.fewer_warps, f"{kernel} needs {needed} bytes of shared memory"
            assert warps > 1, f"{kernel} needs {needed} bytes of shared memory"
            warps //= 2

    def processors(self, device: int) -> int:
        """Return the number of multiprocessors."""
        return self._processors

    def blocks(self, kernel: str, spec: Specialization, stats: bool, units: int, device: int = -1) -> int:
        """Return the number of blocks per unit and head."""
        return self.form(kernel, spec, stats, units)[1]

    def __call__(
        self, kernel: str, spec: Specialization, stats: bool, units: int, arguments: Mapping[str, Value], device: int
    ) -> None:
        """Run every block."""
        defines, blocks = self.form(kernel, spec, stats, units)
        packed = arguments_of(kernel).pack(arguments)
        arguments_of(kernel).check_types(spec, arguments)
        build(kernel, defines).run(packed, ctypes.c_int64(units * blocks), self.order)
