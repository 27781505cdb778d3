"""Hardware, versions, commit and sources, for reports and results files."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import swila
from swila.source_digest import source_digest

SOURCES = source_digest()  # at import: a file may be edited while a run is active
PACKAGES = ("numba", "triton", "numpy", "transformers", "flash-linear-attention")


def environment() -> dict[str, Any]:
    """Return the hardware, versions, commit and sources of this process.

    ``commit`` is that of the git repository, which may be wrong if the files come from elsewhere. ``sources`` is the
    digest of the files themselves (:mod:`swila.source_digest`), by which the commit can be found and checked.
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
    """Return the commit of the checkout, with ``-dirty`` if files differ from it; None outside of a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@cache
def package_version(name: str) -> str | None:
    """Return the version of a package without importing it, or None if it is not installed.

    A look-up takes milliseconds, so it is made once.
    """
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Return the name of the processor if the system reports it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
