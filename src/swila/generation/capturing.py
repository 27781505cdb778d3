"""Capturing CUDA graphs beside other graphs and other threads."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch

_failed: list[torch.cuda.CUDAGraph] = []  # of captures that failed: torch's allocator may still refer to them


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: Any, pool: Any = None) -> Iterator[None]:
    """Capture in a graph what this thread launches within this context, and return to the current stream.

    Garbage is not collected meanwhile: a capture fails if another graph, in a reference cycle, is destroyed.

    Args:
        graph: The graph.
        stream: Stream of the capture, on the current device.
        pool: Memory pool. Default: one of its own.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        here = torch.cuda.stream(torch.cuda.current_stream())  # to which a capture that fails must return
        with here, _capture(graph, stream, pool):
            yield
    except RuntimeError:
        # the generator of some versions of torch stays in the mode of a capture that failed, until one succeeds
        _failed.append(graph)
        with suppress(RuntimeError), _capture(torch.cuda.CUDAGraph(), stream):
            torch.zeros((), device="cuda")
        raise
    finally:
        if collects:
            gc.enable()


def _capture(graph: torch.cuda.CUDAGraph, stream: Any, pool: Any = None) -> AbstractContextManager[Any]:
    return torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream that nothing else uses.

    Torch hands out 32 streams in turns. Workspaces of matrix products belong to a stream, and torch may free them with
    a graph that was captured on it, although other graphs still write there.
    """
    from cuda.bindings import driver

    with torch.cuda.device(device):
        error, handle = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA driver: {error.name}")
    stream = torch.cuda.ExternalStream(int(handle), device)
    weakref.finalize(stream, driver.cuStreamDestroy, handle).atexit = False
    return stream


def cause_of(error: BaseException) -> BaseException:
    """Return the first of the errors of a failed capture: that of the last says only that there was one before."""
    while error.__context__ is not None:
        error = error.__context__
    return error
