"""Which calls the fused kernels serve."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from swila.ops.fused import choice
from swila.ops.fused.choice import serves, use_fused, wanted


def test_by_default_kernels_are_used_on_a_gpu(device):
    x = torch.ones(2, device=device)
    assert serves(x) == (device == "cuda")
    with use_fused(True):
        assert serves(x, None)
        with use_fused(False):
            assert not serves(x)
            assert not wanted()
        assert serves(x)
        assert not serves(x, x.double())
        assert serves(x, x.long())
    assert wanted()


@pytest.mark.unpoisoned
def test_the_choice_can_be_traced(device):
    """On a GPU the search for Triton is part of it."""

    def chosen(x):
        return x + 1 if serves(x) and choice._usable() in (True, False) else x

    x = torch.zeros(2, device=device)
    with use_fused(True):
        assert (torch.compile(chosen, fullgraph=True, backend="aot_eager")(x) == 1).all()
    with use_fused(False):
        assert (torch.compile(chosen, fullgraph=True, backend="aot_eager")(x) == 0).all()


def test_distributed_tensors_are_left_to_torch(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x = distribute_tensor(torch.ones(2, 2), init_device_mesh("cpu", (1,)), [Replicate()])
        with use_fused(True):
            assert not serves(x)
            assert serves(x.to_local())
    finally:
        dist.destroy_process_group()
