"""Launches the CUDA kernels on the CPU: each block in turn, its threads as fibers."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from torch import Tensor

import swila.ops.cuda as package
from swila.ops.cuda.specialization import Specialization

HERE, KERNELS = Path(__file__).parent, Path(package.__file__).parent / "kernels"
SHARED_LIMIT = 232448
BUILD = Path(tempfile.gettempdir()) / "swila-emulator"


@cache
def build(kernel: str, defines: tuple[tuple[str, str], ...]) -> ctypes.CDLL:
    """A shared library with the kernel for these macros."""
    sources = sorted([*KERNELS.iterdir(), *HERE.glob("*.h"), *HERE.glob("*.cpp")])
    key = hashlib.sha256(repr((kernel, defines, [p.read_text() for p in sources])).encode()).hexdigest()[:20]
    library = BUILD / f"{key}.so"
    if not library.exists():
        BUILD.mkdir(exist_ok=True)
        unfinished = library.with_suffix(f".{id(key)}.tmp")
        macros = [f"-D{name}={value}" for name, value in defines]
        macros += [f'-DSOURCE="{KERNELS / kernel}.cu"', f"-DKERNEL_NAME=swila_{kernel}"]
        command = [
            "g++",
            "-std=c++17",
            "-O1",
            "-w",
            "-U_FORTIFY_SOURCE",
            "-shared",
            "-fPIC",
            *macros,
            "-x",
            "c++",
            str(HERE / "emulate.cpp"),
        ]
        subprocess.run([*command, "-o", str(unfinished)], check=True)
        unfinished.rename(library)
    return ctypes.CDLL(str(library))


class Emulator:
    """A launcher; ``order`` is that in which threads run between barriers."""

    def __init__(self, order: int = 0, warps: int = 8, limit: int = SHARED_LIMIT) -> None:
        self.order, self.warps, self.limit = order, warps, limit

    def _built(self, kernel: str, spec: Specialization, flags: dict[str, int]) -> tuple[ctypes.CDLL, int]:
        warps = spec.most_warps(kernel)
        if kernel not in ("backward_keys", "prepare"):
            warps = min(warps, self.warps)
        while True:
            defines = spec.defines(warps, SHARED_LIMIT=self.limit, **flags)
            library = build(kernel, tuple(sorted(defines.items())))
            if library.shared_bytes() <= self.limit:
                return library, warps
            assert warps > 1, f"{kernel} needs {library.shared_bytes()} bytes of shared memory"
            warps //= 2

    def tiles(self, kernel: str, spec: Specialization, flags: dict[str, int], device: int = -1) -> int:
        """How many blocks one head takes."""
        return spec.blocks(kernel, self._built(kernel, spec, flags)[1])

    def __call__(
        self, kernel: str, spec: Specialization, flags: dict[str, int], heads: int, arguments, device: int
    ) -> None:
        """Run every block."""
        library, warps = self._built(kernel, spec, flags)
        values = [0 if a is None else a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        packed = (ctypes.c_int64 * len(values))(*values)
        library.run(packed, ctypes.c_int64(heads * spec.blocks(kernel, warps)), self.order)
