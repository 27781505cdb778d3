"""Compiles kernels by NVRTC at first use, keeps them on disk, loads them once per process and device, launches them."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from swila.ops.cuda.arguments import Arguments, Value, assertions
from swila.ops.cuda.specialization import Specialization
from swila.ops.cuda.table import KERNELS
from swila.ops.devices import processors, shared_memory

SOURCES = files("swila.ops.cuda") / "kernels"


@dataclass
class Compiled:
    """A kernel on a device."""

    module: Any  # keeps the function alive
    function: Any  # the driver's handle
    threads: int
    shared_bytes: int
    blocks: int  # per unit and head
    arguments: Arguments
    types_checked: bool = False


@cache
def _inlined(kernel: str) -> str:
    """Return the kernel's source with its own headers in place."""
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


@cache
def arguments_of(kernel: str) -> Arguments:
    """Return the struct of a kernel's arguments."""
    return Arguments.of(kernel, _inlined(kernel))


@cache
def source(kernel: str) -> str:
    """Return what is compiled: the kernel's source, and assertions that its arguments are as the launch packs them."""
    return _inlined(kernel) + assertions(arguments_of(kernel).fields)


def cache_directory() -> Path:
    """Return the directory of compiled kernels: ``SWILA_CACHE``, else the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "swila"
    return Path(os.environ.get("SWILA_CACHE") or default) / "kernels"


def compile_cubin(kernel: str, defines: dict[str, str], arch: str, driver: int) -> bytes:
    """Return machine code for an architecture (``"sm_90"``), from the cache if it has been compiled before."""
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
def load(kernel: str, spec: Specialization, stats: bool, most_warps: int, device: int) -> Compiled:
    """Return the kernel ready to launch, with up to ``most_warps`` per block, as the device has shared memory for."""
    from cuda.core import ObjectCode

    driver, form = _driver(), KERNELS[kernel]
    limit = shared_memory(device)
    major, minor = torch.cuda.get_device_capability(device)
    with torch.cuda.device(device):
        _make_current(device)
        warps = most_warps
        while warps:
            defines = spec.defines(warps, SHARED_LIMIT=limit, STATS=int(stats))
            cubin = compile_cubin(kernel, defines, f"sm_{major}{minor}", _checked(driver.cuDriverGetVersion()))
            module = ObjectCode.from_cubin(cubin)
            function = module.get_kernel(f"swila_{kernel}")
            shared = _constant(module, "swila_shared_bytes")
            if shared > limit:
                warps = warps // 2 if form.fewer_warps else 0
                continue
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked(driver.cuKernelSetAttribute(attribute, shared, function.handle, driver.CUdevice(device)))
            return Compiled(
                (module, function),
                driver.CUfunction(int(function.handle)),
                _constant(module, "swila_threads"),
                shared,
                form.blocks(spec, warps),
                arguments_of(kernel),
            )
    raise RuntimeError(f"the {kernel} kernel needs {shared} bytes of shared memory per block, the device has {limit}")


class GpuLauncher:
    """Launches on the current stream of the device that holds the tensors."""

    def processors(self, device: int) -> int:
        """Return the number of multiprocessors of a device."""
        return processors(device)

    def blocks(self, kernel: str, spec: Specialization, stats: bool, units: int, device: int) -> int:
        """Return the number of blocks per unit and head."""
        return self._load(kernel, spec, stats, units, device).blocks

    def _load(self, kernel: str, spec: Specialization, stats: bool, units: int, device: int) -> Compiled:
        return load(kernel, spec, stats, KERNELS[kernel].most_warps(spec, units, processors(device)), device)

    def __call__(
        self, kernel: str, spec: Specialization, stats: bool, units: int, arguments: Mapping[str, Value], device: int
    ) -> None:
        """Launch the kernel; nothing here waits for the device."""
        compiled = self._load(kernel, spec, stats, units, device)
        struct = compiled.arguments.pack(arguments)
        if not compiled.types_checked:  # the same for all launches: a specialisation has fixed types
            compiled.arguments.check_types(spec, arguments)
            compiled.types_checked = True
        blocks, stream = units * compiled.blocks, torch.cuda.current_stream(device).cuda_stream
        if torch.cuda.current_device() == device:
            _launch(compiled, struct, blocks, stream, device)
        else:
            with torch.cuda.device(device):
                _launch(compiled, struct, blocks, stream, device)


def _launch(compiled: Compiled, struct: ctypes.Array, blocks: int, stream: int, device: int) -> None:
    driver = _driver()
    _make_current(device)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(struct))
    _checked(
        driver.cuLaunchKernel(
            compiled.function, blocks, 1, 1, compiled.threads, 1, 1, compiled.shared_bytes,
            driver.CUstream(stream), ctypes.addressof(parameters), 0,
        )
    )  # fmt: skip


@cache
def _driver() -> ModuleType:
    """Return the bindings of the driver, an optional package that is imported when a kernel is first loaded."""
    from cuda.bindings import driver

    return driver


_thread = threading.local()


def _make_current(device: int) -> None:
    """Set the driver's context, which every thread has to do once, also those of autograd."""
    if getattr(_thread, "device", None) != device:
        from cuda.core import Device

        Device(device).set_current()
        _thread.device = device


def _constant(module: Any, name: str) -> int:
    """Return the value of an ``int`` that a kernel's source defines for the host."""
    driver = _driver()
    address, _ = _checked(driver.cuLibraryGetGlobal(driver.CUlibrary(int(module.handle)), name.encode()))
    value = ctypes.c_int32()
    _checked(driver.cuMemcpyDtoH(ctypes.addressof(value), address, 4))
    return value.value


def _checked(result: tuple) -> Any:
    """Return the values of a driver call, or raise its error."""
    error, *values = result
    if error != _driver().CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {error.name}")
    return values[0] if len(values) == 1 else values
