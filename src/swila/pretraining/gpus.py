"""GPUs: the numbers of their data sheets that estimates need."""

from __future__ import annotations

import re
from typing import NamedTuple

GIB = 2**30


class Gpu(NamedTuple):
    """A GPU.

    Attributes:
        name: Name of the GPU.
        peak: Dense bfloat16 operations per second of the tensor cores, with float32 sums.
        memory: Bytes that torch reports as the total memory.
        link: Bytes per second that a GPU sends to the other GPUs of its node.
        network: Bytes per second of a GPU's network adapter.
    """

    name: str
    peak: float
    memory: float
    link: float
    network: float


def _gpu(name: str, tflops: float, gib: float, link: float, network: float = 50.0) -> Gpu:
    """Return a GPU from TFLOP/s, GiB and GB/s; 50 GB/s is a network adapter of 400 Gb/s for each GPU."""
    return Gpu(name, tflops * 1e12, gib * GIB, link * 1e9, network * 1e9)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("B200", 2250, 178.3, 900),
        _gpu("GB200", 2500, 184.0, 900),
        _gpu("H200", 989, 139.8, 450),
        _gpu("H200 NVL", 836, 139.8, 450),
        _gpu("GH200", 989, 94.5, 450),
        _gpu("H100", 989, 79.1, 450),
        _gpu("H100 NVL", 836, 93.0, 300),
        _gpu("H100 PCIe", 756, 79.1, 50),
        _gpu("A100", 312, 79.1, 300, 25),
        _gpu("A100 40GB", 312, 39.4, 300, 25),
        _gpu("L40S", 362, 44.4, 25, 25),
        _gpu("L40", 181, 44.4, 25, 25),
        _gpu("A6000", 155, 47.4, 25, 12.5),
        _gpu("RTX 6000 Ada", 364, 47.4, 25, 12.5),
        _gpu("RTX 5090", 209, 31.4, 50, 12.5),
        _gpu("RTX 4090", 165, 23.5, 25, 12.5),
        _gpu("RTX 3090", 71, 23.5, 25, 12.5),
    )
}


def find_gpu(text: str) -> Gpu | None:
    """Return the GPU of a name such as ``"H100"`` or ``torch.cuda.get_device_name()``, or None if it is not known.

    The words of a GPU's name must all be words of the text; of several, the GPU with most words is meant.
    """
    words = _words(text)
    if "laptop" in words:
        return None
    found = [gpu for gpu in GPUS.values() if _words(gpu.name) <= words]
    return max(found, key=lambda gpu: len(_words(gpu.name)), default=None)


def get_gpu(text: str) -> Gpu:
    """Return the same; an unknown name raises a ValueError that lists the GPUs."""
    gpu = find_gpu(text)
    if gpu is None:
        raise ValueError(f"gpu must be one of {', '.join(GPUS)}, got {text!r}")
    return gpu


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower()))
