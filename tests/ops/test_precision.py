"""Precision, determinism and memory."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from served import on_cpu

from swila import switching_delta_rule
from swila.testing import VARIANTS, evaluate, make_call


def test_autocast_does_not_reach_inside(any_backend, device):
    call = make_call(VARIANTS["gated-temporal"], device=device)
    plain = evaluate(call, any_backend)
    with torch.autocast(device, torch.bfloat16):
        cast = evaluate(call, any_backend)
    for key, value in plain.items():
        assert torch.equal(value, cast[key]), key


def test_same_inputs_same_bits(backend, device):
    call = make_call(VARIANTS["gated-temporal"], device=device)
    first, second = (evaluate(call, backend) for _ in range(2))
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


def test_inputs_are_left_alone(backend, device):
    call = make_call(VARIANTS["gated-temporal"], device=device)
    before = {k: v.detach().clone() for k, v in call.items() if isinstance(v, torch.Tensor)}
    state = [t.detach().clone() for t in call["initial_state"]]
    evaluate(call, backend)
    assert all(torch.equal(call[k], v) for k, v in before.items())
    assert all(torch.equal(a, b) for a, b in zip(call["initial_state"], state, strict=True))


def test_gradients_have_the_dtype_of_their_inputs(backend, device):
    call = make_call(VARIANTS["gated-temporal"], dtype=torch.bfloat16, device=device)
    call["log_decay"] = call["log_decay"].detach().float().requires_grad_()
    out = switching_delta_rule(**call, backend=backend).output
    dq, ddecay = torch.autograd.grad(out.sum(), [call["q"], call["log_decay"]])
    assert (dq.dtype, ddecay.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("name", [name for name in on_cpu() if name != "reference"])
def test_memory_of_a_long_sequence(name):
    """T = 8192: forward and backward within three times the bytes of the inputs and their gradients."""
    code = """
    import torch
    from swila import switching_delta_rule
    from swila.testing import Shape, make_call, VARIANTS
    def status(field):
        return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))
    resident, peak = (lambda: status("VmRSS")), (lambda: status("VmHWM"))
    small = make_call(VARIANTS["plain"], Shape(B=1, T=64, H=4, K=64, V=64, J=4), initial_state=False)
    switching_delta_rule(**small, backend="BACKEND").output.sum().backward()
    B, T, H, K, V, J = 1, 8192, 4, 64, 64, 4
    wide, narrow = (B, T, H, J, V), (B, T, H, K)
    inputs = [torch.rand(s, requires_grad=True) for s in (narrow, narrow, narrow, wide, wide, wide)]
    size = sum(t.numel() * t.element_size() for t in inputs)
    base = resident() - size
    assert peak() - resident() < 0.1 * size, "the peak so far must not hide the one to be measured"
    switching_delta_rule(*inputs, backend="BACKEND").output.sum().backward()
    print((peak() - base) / (2 * size))
    """
    command = [sys.executable, "-c", textwrap.dedent(code).replace("BACKEND", name)]
    ratio = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert 1 < ratio < 3


def test_just_compiled_and_cached_kernels_give_the_same_bits(tmp_path):
    pytest.importorskip("numba")
    code = """
from hashlib import md5
from swila.testing import VARIANTS, Shape, make_call
from swila.testing.checks import evaluate
call = make_call(VARIANTS["temporal"], Shape(B=2, T=32, H=1, K=8, V=8, J=3))
print(md5(b"".join(t.numpy().tobytes() for t in evaluate(call, "numba").values())).hexdigest())
"""
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout for _ in range(2)
    )
    assert list(tmp_path.rglob("*.nbc"))
    assert first == second
