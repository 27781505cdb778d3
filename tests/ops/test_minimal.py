"""The short listing of the blocked algorithm computes what the operation computes, and runs alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from swila import switching_delta_rule
from swila.ops.blocked import minimal
from swila.testing import Shape, make_call


@pytest.mark.parametrize(("T", "chunk"), [(1, 32), (40, 16), (37, 5), (64, 32), (10, 1)])
@pytest.mark.parametrize("function", [minimal.blocked, minimal.token_loop])
def test_it_is_the_operation(function, T, chunk):
    shape = Shape(B=2, T=T, H=3, K=6, V=5, J=4)
    call = make_call(shape=shape, dtype=torch.float64, initial_state=False, requires_grad=False)
    names = ("q", "k", "v", "beta", "key_logits", "query_logits")
    options = {"chunk": chunk} if function is minimal.blocked else {}
    found = function(*(call[name] for name in names), **options)
    expected = switching_delta_rule(**call, backend="reference").output
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_it_runs_alone(tmp_path):
    """Outside the package, with torch alone."""
    copy = tmp_path / "minimal.py"
    copy.write_text(Path(minimal.__file__).read_text())
    told = subprocess.run([sys.executable, "-I", str(copy)], capture_output=True, text=True, check=True).stdout
    assert float(re.search(r"largest difference: (\S+)", told)[1]) < 1e-12
    assert "swila" not in re.sub(r'""".*?"""', "", copy.read_text(), count=1, flags=re.DOTALL)
