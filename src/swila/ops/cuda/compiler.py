"""Kernels from source: compiled by NVRTC at first use, kept on disk, loaded once per process and device."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import threading
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swila.ops.cuda.specialization import Specialization

SOURCES = files("swila.ops.cuda") / "kernels"


class Compiled(NamedTuple):
    """A kernel on a device."""

    function: Any  # keeps its module alive
    handle: int
    threads: int
    shared_bytes: int
    warps: int


@cache
def source(kernel: str) -> str:
    """The kernel's source with its own headers in place."""
    done: set[str] = set()

    def inlined(name: str) -> str:
        def include(match: re.Match) -> str:
            if match[1] in done:
                return ""
            done.add(match[1])
            return inlined(match[1])

        text = (SOURCES / name).read_text().replace("#pragma once\n", "")
        return re.sub(r'#include "(.*)"', include, text)

    return inlined(f"{kernel}.cu")


def cache_directory() -> Path:
    """Where compiled kernels are kept: ``SWILA_CACHE``, else the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swila"
    return Path(os.environ.get("SWILA_CACHE") or default) / "kernels"


def compile_cubin(kernel: str, defines: dict[str, str], arch: str, driver: int) -> bytes:
    """Machine code for an architecture (``"sm_90"``), from the cache where it is there."""
    from cuda.bindings import nvrtc
    from cuda.core import Program, ProgramOptions
    from cuda.core.utils import FileStreamProgramCache

    text = source(kernel)
    version = nvrtc.nvrtcVersion()[1:]
    key = hashlib.sha256(repr((text, sorted(defines.items()), arch, driver, version)).encode()).hexdigest()
    with FileStreamProgramCache(cache_directory()) as kept:
        if (found := kept.get(key)) is not None:
            return found
        logging.getLogger("swila").info("compiling the %s kernel for %s: %s", kernel, arch, defines)
        options = ProgramOptions(
            name=f"swila_{kernel}.cu",
            arch=arch,
            define_macro=list(defines.items()),
            device_as_default_execution_space=True,
            disable_warnings=True,
        )
        code = Program(text, "c++", options).compile("cubin").code
        kept[key] = code
    return bytes(code)


@cache
def load(kernel: str, spec: Specialization, flags: tuple[tuple[str, int], ...], device: int) -> Compiled:
    """The kernel ready to launch, with as many warps per block as the device has shared memory for."""
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    limit: int = torch.cuda.get_device_properties(device).shared_memory_per_block_optin  # type: ignore[attr-defined]
    major, minor = torch.cuda.get_device_capability(device)
    with torch.cuda.device(device):
        _make_current(device)
        warps = spec.most_warps(kernel)
        while warps:  # as many as fit
            defines = spec.defines(warps, SHARED_LIMIT=limit, **dict(flags))
            cubin = compile_cubin(kernel, defines, f"sm_{major}{minor}", _checked(driver.cuDriverGetVersion()))
            module = ObjectCode.from_cubin(cubin)
            function = module.get_kernel(f"swila_{kernel}")
            shared = _constant(module, "swila_shared_bytes")
            if shared > limit:
                warps = 0 if kernel == "backward_keys" else warps // 2
                continue
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked(driver.cuKernelSetAttribute(attribute, shared, function.handle, driver.CUdevice(device)))
            return Compiled((module, function), int(function.handle), _constant(module, "swila_threads"), shared, warps)
    raise RuntimeError(f"the {kernel} kernel needs {shared} bytes of shared memory per block, the device has {limit}")


class GpuLauncher:
    """Launches on the current stream of the device that holds the tensors."""

    def tiles(self, kernel: str, spec: Specialization, flags: dict[str, int], device: int) -> int:
        """How many blocks one head takes."""
        return spec.blocks(kernel, load(kernel, spec, tuple(flags.items()), device).warps)

    def __call__(
        self,
        kernel: str,
        spec: Specialization,
        flags: dict[str, int],
        heads: int,
        arguments: Sequence[int | Tensor | None],
        device: int,
    ) -> None:
        """Launch; nothing here waits for the device."""
        from cuda.bindings import driver

        compiled = load(kernel, spec, tuple(flags.items()), device)
        values = [0 if a is None else a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        struct = (ctypes.c_int64 * len(values))(*values)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(struct))
        blocks = heads * spec.blocks(kernel, compiled.warps)
        stream = torch.cuda.current_stream(device).cuda_stream
        with torch.cuda.device(device):
            _make_current(device)
            _checked(
                driver.cuLaunchKernel(
                    driver.CUfunction(compiled.handle), blocks, 1, 1, compiled.threads, 1, 1, compiled.shared_bytes,
                    driver.CUstream(stream), ctypes.addressof(parameters), 0,
                )
            )  # fmt: skip


_thread = threading.local()


def _make_current(device: int) -> None:
    """The driver wants its context set in every thread, autograd's own among them."""
    if getattr(_thread, "device", None) != device:
        from cuda.core import Device

        Device(device).set_current()
        _thread.device = device


def _constant(module: Any, name: str) -> int:
    from cuda.bindings import driver

    address, _ = _checked(driver.cuLibraryGetGlobal(driver.CUlibrary(int(module.handle)), name.encode()))
    value = ctypes.c_int32()
    _checked(driver.cuMemcpyDtoH(ctypes.addressof(value), address, 4))
    return value.value


def _checked(result: tuple) -> Any:
    """The values of a driver call, or its error."""
    from cuda.bindings import driver

    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {error.name}")
    return values[0] if len(values) == 1 else values
