"""The CUDA kernels as a backend: on a GPU as they are, elsewhere with every thread of a block emulated."""

import shutil
from functools import partial

import pytest
from emulator.launcher import Emulator

from swila.ops.backends import Backend, register_backend, unregister_backend
from swila.ops.cuda.backend import Kernels, operand_bits, saved_like, unsupported


@pytest.fixture
def kernels(device, request):
    """Name of the backend under test; on the CPU threads between barriers run in an order that varies with the test."""
    if device != "cpu":
        yield "cuda"
        return
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    emulated = Kernels(Emulator(order=len(request.node.name) % 3, **getattr(request, "param", {})))
    register_backend(
        Backend(
            "emulated", "", emulated.forward, emulated.backward, saved_like, step=emulated.step,
            step_inplace=partial(emulated.step, inplace=True), step_takes_alive=True, step_has_gradients=False,
            refuses=lambda problem: unsupported(problem), operand_bits=operand_bits,
            backward_of_logits=partial(emulated.backward, beta_logits=True),
        )
    )  # fmt: skip
    yield "emulated"
    unregister_backend("emulated")
