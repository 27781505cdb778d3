"""Where something ran: hardware, versions, commit and sources, for reports and results files."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import swila
from swila.source_digest import source_digest

SOURCES = source_digest()  # as they are imported: a file may be edited while something runs
PACKAGES = ("numba", "triton", "numpy", "transformers", "flash-linear-attention")


def environment() -> dict[str, Any]:
    """Facts that a number needs beside it.

    ``commit`` is what git says, which may be wrong where the git folder is not the one the files came from; ``sources``
    is the digest of the files themselves (:mod:`swila.source_digest`), by which the commit can be found and checked.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "swila": swila.__version__,
        "commit": commit(),
        "sources": SOURCES,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "packages": {name: version for name in PACKAGES if (version := package_version(name))},
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def commit() -> str | None:
    """The commit the package runs from, with ``-dirty`` where the tree differs; None outside a checkout of it."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def package_version(name: str) -> str | None:
    """Version of an installed package, without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
