"""Operators of fused pieces take operands with any strides, as their tag promises torch.compile."""

import pytest
import torch

from swila.ops.fused import concatenate, expand, rms_norm, rotary, short_conv, swiglu
from swila.ops.fused.choice import use_fused

MODULES = (concatenate, expand, rms_norm, rotary, short_conv, swiglu)
ops = torch.ops.swila
F32 = torch.float32


@pytest.fixture(autouse=True)
def kernels():
    with use_fused(True):
        yield


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bounds():
    return torch.tensor([0, 4, 15])


CALLS = {
    "rms_norm": lambda: (drawn(3, 5, 24), drawn(24), drawn(3, 5, 24, seed=1), "silu", 1e-2, F32, False),
    "add_rms_norm": lambda: (drawn(3, 5, 24), drawn(3, 5, 24, seed=1), drawn(24), 1e-2, F32),
    "rms_norm_backward": lambda: (
        drawn(3, 5, 24), drawn(24), drawn(3, 5, 24, seed=1), "silu", 1e-2, drawn(3, 5, 24, seed=2), drawn(3, 5, 24),
    ),
    "swiglu": lambda: (drawn(3, 5, 24), drawn(3, 5, 24, seed=1)),
    "swiglu_backward": lambda: (drawn(3, 5, 24), drawn(3, 5, 24, seed=1), drawn(3, 5, 24, seed=2)),
    "swiglu_backward_and_product": lambda: (drawn(3, 5, 24), drawn(3, 5, 24, seed=1), drawn(3, 5, 24, seed=2)),
    "short_conv": lambda: (
        drawn(1, 15, 32), drawn(32, 4), drawn(32), drawn(2, 3, 32, seed=1), bounds(), True, 16,
    ),
    "short_conv_backward": lambda: (
        drawn(1, 15, 32, seed=2), drawn(1, 15, 32), drawn(32, 4), drawn(32), drawn(2, 3, 32, seed=1), bounds(), True,
        16,
    ),
    "expand": lambda: (drawn(3, 5, 16), drawn(48, 16), True),
    "rotary_table": lambda: (torch.arange(15).view(3, 5), 12, 100.0, F32),
    "rotate": lambda: (drawn(3, 5, 2, 12), drawn(2, 3, 5, 6, seed=1), True),
    "concatenate_again": lambda: ([drawn(8, 16), drawn(24, 16, seed=1)], 4, F32),
}  # fmt: skip


def padded(t):
    """The same values in rows that are further apart."""
    wide = t.new_full((*t.shape[:-1], t.shape[-1] + 8), torch.nan if t.is_floating_point() else -1)
    wide[..., : t.shape[-1]] = t
    return wide[..., : t.shape[-1]]


def turned(t):
    """The same values with the first dimension innermost."""
    return t.movedim(0, -1).contiguous().movedim(-1, 0)


def changed(argument, change):
    if isinstance(argument, (list, tuple)):
        return type(argument)(changed(part, change) for part in argument)
    return change(argument) if isinstance(argument, torch.Tensor) else argument


def tensors(argument):
    """All tensors in an argument, or in several."""
    if isinstance(argument, (list, tuple)):
        return [t for part in argument for t in tensors(part)]
    return [argument] if isinstance(argument, torch.Tensor) else []


@pytest.mark.parametrize("change", [padded, turned])
@pytest.mark.parametrize("name", CALLS)
def test_any_strides(name, change, device):
    given = changed(CALLS[name](), lambda t: t.to(device))
    other = changed(given, change)
    assert any(a.stride() != b.stride() for a, b in zip(tensors(given), tensors(other), strict=True))
    found = getattr(ops, name)(*other)
    expected = getattr(ops, name)(*given)
    for a, b in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert a.stride() == b.stride()  # what the compiler was told


def test_every_operator_has_a_call():
    defined = [name for module in MODULES for name in module._library._op_defs]
    assert {name.removeprefix("swila::") for name in defined} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_the_compiler_makes_no_copies_before(name):
    assert torch.Tag.flexible_layout in getattr(ops, name).default.tags
