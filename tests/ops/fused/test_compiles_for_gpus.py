"""Every Triton kernel compiles for NVIDIA GPUs; this needs no GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import swila.ops.fused

HERE = Path(__file__).parent


def test_every_kernel():
    """For Hopper. In a process of its own: here kernels are those of the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, HERE / "compiling.py", "90"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    wrappers = [path for path in Path(swila.ops.fused.__file__).parent.glob("*.py") if "_kernels" not in path.stem]
    launched = {name for path in wrappers for name in re.findall(r"(\w+)\[.*\]\(", path.read_text())}
    assert set(ran.stdout.split()) == launched
