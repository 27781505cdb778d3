"""A program that compiles every Triton kernel for an NVIDIA GPU, without one, and prints their names.

Kernels are called on the CPU by the functions that launch them, and compiled instead of launched. The interpreter, in
which the other tests run them, accepts some kernels that the compiler does not.
"""

import sys
from types import SimpleNamespace

import torch
import triton
from test_layout import CALLS, changed
from test_next_token import make as make_loop
from test_skinny import KINDS
from test_skinny import make as make_skinny
from test_step_attention import make as make_attention
from test_step_operands import make as make_operands
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from swila.ops.fused.choice import use_fused
from swila.ops.fused.cross_entropy import cross_entropy_with_gradient
from swila.ops.fused.next_token import keep_hidden, pick_token
from swila.ops.fused.skinny import skinny
from swila.ops.fused.step_attention import step_attention
from swila.ops.fused.step_operands import step_operands

BF16 = torch.bfloat16


def compile_instead(capability: int) -> set[str]:
    """Let launches compile for a compute capability; returns the set to which names of kernels are added."""
    names: set[str] = set()
    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )
    triton.runtime.driver.set_active(driver)
    run = JITFunction.run

    def compiled(self, *args, grid, warmup, **kwargs):
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        assert kernel.asm["cubin"], self.__name__
        names.add(self.__name__)
        return kernel

    JITFunction.run = compiled
    return names


def launch_all() -> None:
    """Launch every kernel, in the forms of bfloat16."""
    for name, call in CALLS.items():
        given = changed(call(), lambda t: t.to(BF16) if t.is_floating_point() else t)
        getattr(torch.ops.swila, name)(*given)
    for B in (1, 17, 33):
        for kind in KINDS.values():
            skinny(*make_skinny("cpu", B, dtype=BF16, **kind))
    joint, heads, others = make_operands("cpu", 3, BF16)
    step_operands(joint, torch.ones(3, dtype=torch.bool), heads, others)
    joint, keys, values, lengths, alive = make_attention("cpu", 3, 2, 1, 64, 300, BF16)
    step_attention(joint, keys, values, lengths, alive, 2, 1e4, None, 1e-5)
    z = torch.zeros(7, 200, dtype=BF16)
    cross_entropy_with_gradient(z, torch.zeros(7, dtype=torch.long), z)
    logits, embedding = torch.zeros(6, 9000, dtype=BF16), torch.zeros(9000, 40, dtype=BF16)
    loop = make_loop("cpu", 6)
    pick_token(logits, embedding, torch.tensor([1]), loop, -1)
    hidden = torch.zeros(6, 40, dtype=BF16)
    keep_hidden(hidden, hidden[0], 1e-5, hidden.clone(), loop)


if __name__ == "__main__":
    compiled = compile_instead(int(sys.argv[1]))
    with use_fused(True):
        launch_all()
    print(*sorted(compiled))
