"""Rotary positions are rotations of pairs of dimensions, by the kernel as by its twin in torch."""

import cmath

import pytest
import torch
from against_twin import check
from torch.testing import assert_close

from swila.ops.fused.choice import use_fused
from swila.ops.fused.rotary import rotary_table, rotate, rotate_reference


def drawn(*shape, dtype=torch.float32, device="cpu", seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def positions(kind, B, T, device):
    """Positions of one sequence for all rows, of each row, or very large ones."""
    found = {
        "one": torch.arange(T).unsqueeze(0),
        "each": torch.stack([torch.arange(T) + 3 * b for b in range(B)]),
        "large": torch.arange(T).unsqueeze(0) + 2_000_003,
    }
    return found[kind].to(device)


def rotated(x, position, theta):
    return rotate(x, rotary_table(position, x.shape[-1], theta, x.dtype))


@pytest.mark.parametrize("kernels", [True, False])
def test_rotations(device, kernels):
    """Pair (i, i + D/2) as a complex number, times exp(i angle), in plain numbers; large positions are exact."""
    x, position, theta = drawn(2, 3, 2, 6, dtype=torch.float32), torch.tensor([[0, 5, 2_000_003]]), 50.0
    with use_fused(kernels):
        found = rotated(x.to(device), position.to(device), theta).cpu()
    for b in range(2):
        for t in range(3):
            for h in range(2):
                for i in range(3):
                    z = complex(x[b, t, h, i], x[b, t, h, i + 3])
                    z *= cmath.exp(1j * position[0, t].item() * theta ** (-2 * i / 6))
                    assert_close(found[b, t, h, [i, i + 3]], torch.tensor([z.real, z.imag]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["one", "each", "large"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [(2, 5, 3, 12), (1, 7, 4, 64), (3, 1, 1, 2)], ids=str)
def test_against_torch(device, sizes, dtype, kind):
    """Outputs and gradients against float64; the table in float64 as well."""
    position = positions(kind, *sizes[:2], device)

    def twin(x):
        with use_fused(False):
            return rotated(x, position.to(x.device), 1e4)

    with use_fused(True):
        check(lambda x: rotated(x, position, 1e4), twin, [drawn(*sizes, dtype=dtype, device=device)])


@pytest.mark.parametrize("kernels", [True, False])
def test_compiled(device, kernels):
    """Traced with gradients; the table is one node, which is not computed again for every head."""
    position = positions("each", 2, 5, device)
    nodes = []

    def backend(graph, inputs):
        nodes.extend(node for node in graph.graph.nodes if node.op == "call_function")
        return graph

    x = drawn(2, 5, 3, 8, device=device)
    with use_fused(kernels):
        found = torch.compile(lambda x: rotated(x, position, 1e4), fullgraph=True, backend=backend)(x)
    assert_close(found, rotated(x, position, 1e4))
    assert sum("rotary_table" in str(node.target) for node in nodes) == 1
    assert not any(word in str(node.target) for node in nodes for word in ("cos", "sin", "pow"))


def test_parts_of_wider_rows(device):
    """As queries are parts of a joint product, and gradients those of a transposed tensor."""
    wide = drawn(2, 5, 70, device=device)
    x = wide[..., 10:58].unflatten(-1, (4, 12))
    position = positions("one", 2, 5, device)
    with use_fused(True):
        check(lambda x: rotated(x, position, 1e2).transpose(1, 2), lambda x: twin_transposed(x, position), [x])
        empty = x[:0].detach().requires_grad_()
        assert torch.autograd.grad(rotated(empty, position, 1e2).sum(), empty)[0].shape == empty.shape


def twin_transposed(x, position):
    with use_fused(False):
        return rotated(x, position.to(x.device), 1e2).transpose(1, 2)


def test_back_is_the_inverse():
    x, position = drawn(1, 4, 2, 8, dtype=torch.float64), torch.arange(4).unsqueeze(0)
    table = rotary_table(position, 8, 1e3, torch.float64)
    assert_close(rotate_reference(rotate_reference(x, table), table, back=True), x)


def test_other_ranks():
    """Heads of a single sequence without a batch."""
    x = drawn(1, 6, 2, 8)
    assert torch.equal(rotated(x[0], torch.arange(6), 1e4), rotated(x, torch.arange(6).unsqueeze(0), 1e4)[0])
