"""SwiGLU, and the feed-forward part of a block as one function, are their twins in torch."""

import pytest
import torch
from against_twin import check
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from swila.layers.projection import SwiGLU
from swila.ops.fused.choice import use_fused
from swila.ops.fused.feed_forward import feed_forward, mlp_serves, swiglu_mlp
from swila.ops.fused.modules import is_plain_linear
from swila.ops.fused.rms_norm import add_rms_norm, rms_norm, rms_norm_reference
from swila.ops.fused.swiglu import swiglu, swiglu_reference

EPS = 1e-2


@pytest.fixture(autouse=True)
def kernels():
    with use_fused(True):
        yield


def drawn(*shape, dtype=torch.float32, device="cpu", seed=0, scale=1.0):
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(device, dtype)


def mlp_twin(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def feed_forward_twin(x, y, norm, gate, up, down):
    total = x + y
    return total + mlp_twin(rms_norm_reference(total, norm, EPS).to(gate.dtype), gate, up, down)


def weights(D=24, inner=40, **kind):
    shapes = ((inner, D), (inner, D), (D, inner))
    return [drawn(*shape, seed=10 + i, scale=D**-0.5, **kind) for i, shape in enumerate(shapes)]


def fused(x, y, norm, gate, up, down):
    return feed_forward(x, y, norm, EPS, gate, up, down)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 40), (5, 515), (1, 1)], ids=str)
def test_swiglu(shape, dtype, device):
    gate, up = (drawn(*shape, dtype=dtype, device=device, seed=i, scale=3) for i in (0, 1))
    check(swiglu, swiglu_reference, [gate, up])


def test_swiglu_of_halves_and_other_strides(device):
    both = drawn(3, 5, 60, device=device)
    for gate, up in (both.chunk(2, -1), (both[..., ::2], both[..., 1::2]), (both[0], both[1].t().contiguous().t())):
        check(swiglu, swiglu_reference, [gate, up])
    empty = drawn(0, 4, device=device).requires_grad_()
    assert torch.autograd.grad(swiglu(empty, empty).sum(), empty)[0].shape == (0, 4)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_extreme_gates(device):
    gate = torch.tensor([-1e30, -200.0, -90.0, 0.0, 90.0, 1e30], device=device)
    check(swiglu, swiglu_reference, [gate, torch.ones_like(gate)])


def test_swiglu_of_two_dtypes_is_left_to_torch(device):
    gate, up = drawn(2, 4, dtype=torch.bfloat16, device=device), drawn(2, 4, device=device)
    assert_close(swiglu(gate, up), swiglu_reference(gate, up), rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"up must have the shape of gate, \[2, 4\], got \[4\]"):
        swiglu(gate, up[0])


@pytest.mark.parametrize("shape", [(2, 5, 24), (7, 24), (24,)], ids=str)
def test_mlp(shape, device):
    check(swiglu_mlp, mlp_twin, [drawn(*shape, device=device), *weights(device=device)])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.unpoisoned
def test_feed_forward(compiled, device):
    x, y = (drawn(2, 5, 24, device=device, seed=i) for i in (0, 1))
    given = [x, y, drawn(24, device=device, seed=2), *weights(device=device)]
    check(fused, feed_forward_twin, given, compiled=compiled)


def test_feed_forward_in_half_precision(device):
    """As good as the modules: nothing is rounded more often. Triton's interpreter does not round to bfloat16."""
    kind = {"dtype": torch.float16, "device": device}
    x, y, gradient = (drawn(2, 50, 24, seed=i, **kind) for i in range(3))
    given = [t.requires_grad_() for t in (x, y, 1 + drawn(24, seed=3, scale=0.1, **kind), *weights(**kind))]
    wide = [t.detach().double().requires_grad_() for t in given]

    def results(function, tensors):
        out = function(*tensors)
        return [out, *torch.autograd.grad(out, tensors, gradient.to(out.dtype))]

    expected = results(feed_forward_twin, wide)
    usual = results(feed_forward_twin, given)
    for found, plain, exact in zip(results(fused, given), usual, expected, strict=True):
        assert found.dtype == torch.float16
        assert (found.double() - exact).norm() < 1.1 * (plain.double() - exact).norm() + 2**-13 * exact.norm()


def test_autocast(device):
    """The residual stream and the weights stay in float32, and products are in half precision."""
    x, y = drawn(2, 5, 24, device=device), drawn(2, 5, 24, dtype=torch.bfloat16, device=device, seed=1)
    given = [t.requires_grad_() for t in (x, y, drawn(24, device=device, seed=2), *weights(device=device))]
    with torch.autocast(device, torch.bfloat16):
        found = fused(*given)
    expected = feed_forward_twin(*given)
    assert found.dtype == torch.float32
    assert (found - expected).norm() < 0.01 * expected.norm()
    assert not torch.equal(found, expected)
    for a, b, t in zip(
        torch.autograd.grad(found.sum(), given), torch.autograd.grad(expected.sum(), given), given, strict=True
    ):
        assert a.dtype == t.dtype
        assert (a.float() - b.float()).norm() < 0.03 * b.float().norm()


@pytest.mark.parametrize("frozen", range(6))
def test_what_needs_no_gradient_gets_none(frozen, device):
    x, y = (drawn(5, 24, device=device, seed=i) for i in (0, 1))
    given = [x, y, drawn(24, device=device, seed=2), *weights(device=device)]
    wanted = [t.requires_grad_() for i, t in enumerate(given) if i != frozen]
    found, expected = (torch.autograd.grad(f(*given).square().sum(), wanted) for f in (fused, feed_forward_twin))
    assert_close(found, expected)


def kept(function, *tensors):
    """Bytes that a function keeps for its backward pass, without its inputs."""
    found = {}

    def pack(t):
        found[t.untyped_storage()._cdata] = t.untyped_storage()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = function(*tensors)
    inputs = {t.untyped_storage()._cdata for t in tensors}
    assert result is not None
    return sum(storage.nbytes() for key, storage in found.items() if key not in inputs)


def test_what_is_kept(device):
    """The sum, gate and up; of the MLP alone, gate and up."""
    x, y = (drawn(7, 24, device=device, seed=i).requires_grad_() for i in (0, 1))
    given = [t.requires_grad_() for t in (drawn(24, device=device, seed=2), *weights(device=device))]
    assert kept(fused, x, y, *given) == 4 * 7 * (24 + 2 * 40)
    assert kept(swiglu_mlp, x, *given[1:]) == 4 * 7 * 2 * 40


def test_gradients_can_be_asked_for_twice(device):
    """What is kept is not overwritten."""
    given = [t.requires_grad_() for t in (*(drawn(5, 24, device=device, seed=i) for i in (0, 1)),
             drawn(24, device=device, seed=2), *weights(device=device))]  # fmt: skip
    out = fused(*given).sum()
    first = torch.autograd.grad(out, given, retain_graph=True)
    assert_close(torch.autograd.grad(out, given), first, rtol=0, atol=0)


def test_second_derivatives_are_refused(device):
    """Their formula would be wrong: the operators have no gradients of their own."""
    x, weight = drawn(5, 24, device=device).requires_grad_(), drawn(24, device=device, seed=2)
    for out in (swiglu(x, x), swiglu_mlp(x, *weights(device=device)), fused(x, x, weight, *weights(device=device)),
                rms_norm(x, weight, EPS), add_rms_norm(x, x, weight, EPS)[1]):  # fmt: skip
        (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


class Counted(nn.Linear):
    """A Linear of another class, as adapters are."""

    calls = 0

    def forward(self, x):
        Counted.calls += 1
        return super().forward(x)


def test_modules_that_are_not_plain_are_called(device):
    torch.manual_seed(0)
    x, mlp = drawn(3, 6, device=device).requires_grad_(), SwiGLU(6, 10, 6).to(device)
    expected = mlp(x)
    calls = []
    for part in (mlp.gate, mlp.up, mlp.down):
        for register in (
            part.register_forward_hook,
            part.register_forward_pre_hook,
            part.register_full_backward_hook,
            part.register_full_backward_pre_hook,
        ):
            handle = register(lambda *_: calls.append(1))
            assert not is_plain_linear(part)
            before = len(calls)
            out = mlp(x)
            out.sum().backward()
            assert len(calls) == before + 1
            assert_close(out, expected)
            handle.remove()
            assert is_plain_linear(part)
    mlp.up.__class__ = Counted
    assert_close(mlp(x), expected)
    assert Counted.calls == 1
    mlp.up.__class__ = nn.Linear
    mlp.up.forward = lambda x: 2 * F.linear(x, mlp.up.weight)  # as offloaded weights are put in place
    assert_close(mlp(x), 2 * expected)
    del mlp.up.forward
    mlp.up.bias = nn.Parameter(torch.ones(10, device=device))
    assert not torch.allclose(mlp(x), expected)


def test_without_gradients_weights_are_not_joined(device):
    x, given = drawn(3, 24, device=device), weights(device=device)
    assert mlp_serves(x, *given)
    with torch.no_grad():
        assert not mlp_serves(x, *given)
        assert_close(swiglu_mlp(x, *given), mlp_twin(x, *given))
    assert not mlp_serves(x, *given[:2], given[2].bfloat16())


@pytest.mark.unpoisoned
def test_operators_are_registered_properly(device):
    gate, up, grad = (drawn(3, 24, device=device, seed=i) for i in range(3))
    ops = torch.ops.swila
    torch.library.opcheck(ops.swiglu.default, (gate, up))
    torch.library.opcheck(ops.swiglu_backward.default, (gate, up, grad))
    torch.library.opcheck(ops.swiglu_backward_and_product.default, (gate, up, grad))


class Quantised(torch.Tensor):
    """A weight with a product of its own, and no other operation."""

    @staticmethod
    def __new__(cls, codes):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes):
        self.codes = codes

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.linear:
            return torch.nn.functional.linear(args[0], args[1].codes.float())
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        if operator is torch.ops.aten.detach.default:
            return cls(args[0].codes)
        raise NotImplementedError(operator)


def test_quantised_weights_have_their_own_product(device):
    mlp = SwiGLU(6, 10, 6).to(device)
    for part in (mlp.gate, mlp.up, mlp.down):
        codes = torch.randint(-3, 4, part.weight.shape, device=device)
        part.weight = torch.nn.Parameter(Quantised(codes), requires_grad=False)
    x = torch.randn(3, 6, device=device, requires_grad=True)
    with use_fused(False):
        expected = mlp(x)
    with use_fused(True):
        assert_close(mlp(x), expected)
