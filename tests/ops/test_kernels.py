"""The CUDA kernels: on a GPU as they are, elsewhere compiled for the CPU with every thread of a block emulated."""

import shutil

import pytest
import torch
from emulator.launcher import Emulator
from served import assert_right

from swila import SwitchingState, switching_delta_rule, switching_delta_rule_step
from swila.ops import set_value_checks
from swila.ops.backends import Backend, choose_backend, get_backend, register_backend, unregister_backend
from swila.ops.call import PER_TOKEN, Inputs, Options, Results
from swila.ops.cuda.backend import Kernels, saved_like
from swila.ops.cuda.specialization import Specialization
from swila.ops.cuda.table import backward_kernel
from swila.testing import VARIANTS, Shape, Variant, evaluate, make_call, problem_of

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def assert_two_roles(call):
    """With as many multiprocessors as an H100 has, the backward of a head is that with two roles."""
    x = Inputs.of([*(call.get(name) for name in PER_TOKEN), *call["initial_state"]])
    spec = Specialization.of(x, Options("pre", call["normalize"]))
    assert backward_kernel(spec, problem_of(call).H, 132) == "backward_split"


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(kernels, device, name):
    assert_right(make_call(VARIANTS[name], Shape(B=1, T=37, H=2, K=32, V=16, J=4), dtype=BF16, device=device), kernels)


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.parametrize("name", ["temporal", "gated-temporal", "post-decay-value-temporal"])
def test_more_precise_inputs(kernels, device, name, dtype):
    assert_right(make_call(VARIANTS[name], Shape(B=1, T=20, H=1, K=16, V=16, J=3), dtype=dtype, device=device), kernels)


@pytest.mark.parametrize("J", [1, 2, 3, 5, 8, 16])
def test_mixtures(kernels, device, J):
    assert_right(
        make_call(VARIANTS["plain"], Shape(B=1, T=18, H=1, K=16, V=16, J=J), dtype=BF16, device=device), kernels
    )


@pytest.mark.parametrize("name", ["temporal", "unnormalized"])
def test_gates_of_many_mixtures(kernels, device, name):
    """Beyond four mixtures bf16 has a forward of its own."""
    assert_right(make_call(VARIANTS[name], Shape(B=1, T=18, H=1, K=16, V=16, J=5), dtype=BF16, device=device), kernels)


@pytest.mark.parametrize(
    ("name", "J", "dtype"),
    [
        ("plain", 4, BF16),
        ("plain", 5, BF16),
        ("plain", 16, BF16),
        ("plain", 2, F32),
        ("gated", 4, BF16),
        ("gated-value", 2, BF16),
    ],
    ids=str,
)
def test_without_statistics(kernels, device, name, J, dtype):
    """As in training: the query mix is then made by other lanes."""
    call = make_call(VARIANTS[name], Shape(B=1, T=34, H=1, K=16, V=16, J=J), dtype=dtype, device=device)
    assert_right(call, kernels, statistics=False)


@pytest.mark.parametrize(("K", "V"), [(16, 128), (64, 64), (128, 16), (128, 128)])
@pytest.mark.parametrize("name", ["plain", "gated", "gated-value"])
def test_sizes(kernels, device, name, K, V):
    if device == "cpu" and (K * V == 128 * 128 or (name != "plain" and K != V)):
        pytest.skip("takes long to emulate")
    call = make_call(VARIANTS[name], Shape(B=1, T=17, H=1, K=K, V=V, J=2), dtype=BF16, device=device)
    assert_right(call, kernels)


@pytest.mark.parametrize("name", ["temporal", "gated", "gated-head"])
def test_packed(kernels, device, name):
    """Lengths around a chunk of 16 tokens, and of 512, after which states are kept."""
    lengths = [3, 1, 16, 17, 33] + [513] * (name == "gated" or device != "cpu")
    call = make_call(VARIANTS[name], Shape(H=1, K=16, V=16, J=2), lengths=lengths, dtype=F32, device=device)
    if name == "temporal":
        call["cu_seqlens"] = call["cu_seqlens"].int()
    assert_right(call, kernels)


@pytest.mark.parametrize("name", ["plain", "gated-value"])
def test_across_kept_states(kernels, device, name):
    """Longer than a segment: the backward starts from states the forward has kept."""
    assert_right(make_call(VARIANTS[name], Shape(B=2, T=530, H=1, K=16, V=16, J=2), dtype=F32, device=device), kernels)


@pytest.mark.parametrize("J", [2, 5])
def test_states_kept_by_the_forwards_of_bf16(kernels, device, J, monkeypatch):
    """Without a decay bf16 has forwards of its own; emulated, segments are shorter."""
    if device == "cpu":
        monkeypatch.setattr("swila.ops.cuda.specialization.SEGMENT", 32)
    T = 70 if device == "cpu" else 1030
    assert_right(
        make_call(VARIANTS["plain"], Shape(B=2, T=T, H=1, K=16, V=16, J=J), dtype=BF16, device=device), kernels
    )


def test_without_initial_state(kernels, device):
    call = make_call(VARIANTS["temporal"], Shape(B=1, T=20, H=1, V=16), initial_state=False, dtype=F32, device=device)
    assert_right(call, kernels)


@pytest.mark.parametrize("kernels", [{"processors": 1}, {"processors": 132}], indirect=True, ids=["many", "few"])
@pytest.mark.parametrize(("name", "J", "stats"), [("plain", 4, True), ("temporal", 4, False), ("plain", 3, False)])
def test_many_and_few_heads(kernels, device, name, J, stats):
    """With few heads a head is shared by several blocks, and the backward has roles for its warps.

    The last chunk is partial, and there are more chunks than buffers between the roles.
    """
    call = make_call(VARIANTS[name], Shape(B=1, T=69, H=1, K=16, V=32, J=J), dtype=BF16, device=device)
    assert_right(call, kernels, statistics=stats)


@pytest.mark.parametrize("kernels", [{"processors": 1}], indirect=True, ids=["many"])
@pytest.mark.parametrize(("name", "J", "stats"), [("plain", 4, False), ("plain", 3, True), ("temporal", 4, True)])
def test_blocks_of_most_warps(kernels, device, name, J, stats):
    """The forward has two warps that substitute, and two that mix."""
    call = make_call(VARIANTS[name], Shape(B=1, T=37, H=1, K=16, V=64, J=J), dtype=BF16, device=device)
    assert_right(call, kernels, statistics=stats)


@pytest.mark.parametrize("kernels", [{"processors": 132}], indirect=True, ids=["few"])
@pytest.mark.parametrize(
    ("key", "query", "normalize", "J", "stats"),
    [
        (True, False, True, 2, False),
        (False, True, True, 2, False),
        (True, True, False, 2, False),
        (True, True, True, 3, True),
    ],
)
def test_few_heads_and_gates(kernels, device, key, query, normalize, J, stats):
    variant = Variant(None, "pre", key, query, normalize)
    call = make_call(variant, Shape(B=1, T=37, H=1, K=16, V=32, J=J), dtype=BF16, device=device)
    assert_two_roles(call)
    assert_right(call, kernels, statistics=stats)


@pytest.mark.parametrize("kernels", [{"processors": 132}], indirect=True, ids=["few"])
@pytest.mark.parametrize("name", ["plain", "temporal"])
def test_few_heads_of_packed_sequences(kernels, device, name):
    lengths = [3, 1, 17, 33] + [530] * (device != "cpu")
    call = make_call(VARIANTS[name], Shape(H=1, K=64, V=32, J=2), lengths=lengths, dtype=BF16, device=device)
    assert_two_roles(call)
    assert_right(call, kernels)


@pytest.mark.parametrize(
    ("kernels", "name", "dtype"),
    [({"processors": 1}, "plain", BF16), ({"processors": 132}, "temporal", BF16), ({}, "gated-value", F32)],
    indirect=["kernels"],
    ids=["many", "few", "decay"],
)
def test_packed_sequences_without_tokens(kernels, device, name, dtype):
    """They are refused where values are checked, and elsewhere do no harm."""
    shape = Shape(H=1, K=16, V=32, J=4)
    call = make_call(VARIANTS[name], shape, lengths=[3, 20], dtype=dtype, initial_state=False, device=device)
    inputs = [t for t in call.values() if isinstance(t, torch.Tensor) and t.requires_grad]

    def results(*bounds):
        call["cu_seqlens"] = torch.tensor(bounds, device=device)
        output = switching_delta_rule(**call, backend=kernels).output
        return output, *torch.autograd.grad(output.float().square().sum(), inputs)

    set_value_checks("never")
    try:
        found, expected = results(0, 0, 3, 3, 23, 23), results(0, 3, 23)
    finally:
        set_value_checks("cpu")
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kernels", [{"warps": 1}, {"limit": 99 * 1024}], indirect=True, ids=str)
@pytest.mark.parametrize("lengths", [None, [20, 3]], ids=str)
@pytest.mark.parametrize("name", ["temporal", "gated"])
def test_several_blocks_per_head(kernels, device, name, lengths):
    """As on a GPU with less shared memory: heads are split among blocks, and their parts of dq and dk added up."""
    shape = Shape(B=2, T=20, H=2, K=32, V=32, J=4)
    assert_right(make_call(VARIANTS[name], shape, lengths=lengths, dtype=BF16, device=device), kernels)


@pytest.mark.parametrize("kernels", [{"processors": 1}, {"processors": 132}], indirect=True, ids=["many", "few"])
@pytest.mark.parametrize(
    ("name", "dtype"), [("plain", BF16), ("temporal", BF16), ("plain", F32), ("gated", F32), ("gated-value", BF16)]
)
def test_gradient_of_the_logits_of_learning_rates(kernels, device, name, dtype):
    """It takes the place of the learning rates' own; all others have the same bits."""
    call = make_call(VARIANTS[name], Shape(B=1, T=20, H=1, K=16, V=32, J=2), dtype=dtype, device=device)
    x = Inputs.of(call.get(field) for field in Inputs._fields[:9])
    backend = get_backend(kernels)
    results, kept = backend.forward(x, Options(), True)
    grads = Results(torch.linspace(-1, 1, results.output.numel(), device=device).sin().view_as(x.v).to(dtype))
    own, of_logits = (run(x, Options(), kept, grads) for run in (backend.backward, backend.backward_of_logits))
    beta, grad = x.beta.double(), own.pop("beta").double()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(of_logits.pop("beta").double(), grad * beta * (1 - beta), rtol=4 * eps, atol=eps * 1e-6)
    for field, value in own.items():
        assert torch.equal(of_logits[field], value), field


@pytest.mark.parametrize("which", ["output", "key_entropy", "query_usage", "W"])
def test_gradient_of_one_result(kernels, device, which):
    """Most losses depend on one of the results alone."""
    call = make_call(VARIANTS["gated-temporal"], Shape(B=1, T=18, H=1, K=16, V=16, J=2), dtype=F32, device=device)
    leaves = [call["q"], call["k"], call["key_logits"], call["query_logits"], call["log_decay"]]
    found = []
    for backend in (kernels, "reference"):
        results = switching_delta_rule(**call, return_state=True, routing_stats=True, backend=backend)
        named = {"output": results.output, **results.state._asdict(), **results.stats._asdict()}
        found.append(torch.autograd.grad(named[which].square().sum(), leaves, materialize_grads=True))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4 * theirs.abs().max().item() + 1e-12, rtol=1e-3)


def test_mixed_dtypes_and_strides(kernels, device):
    call = make_call(VARIANTS["gated-temporal"], Shape(B=2, T=34, H=2, K=16, V=32, J=2), dtype=BF16, device=device)
    call["beta"], call["log_decay"] = (call[name].detach().float().requires_grad_() for name in ("beta", "log_decay"))
    call["v"] = call["v"].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    whole = torch.zeros(call["k"].numel() + 1, dtype=BF16, device=device)[1:].view_as(
        call["k"]
    )  # not aligned to 16 bytes
    call["k"] = whole.copy_(call["k"].detach()).requires_grad_()
    assert_right(call, kernels)


@pytest.mark.parametrize(
    ("name", "T", "processors"), [("gated-temporal", 20, 4), ("temporal", 69, 4), ("plain", 69, 4), ("temporal", 69, 1)]
)
def test_same_bits_whatever_the_order_of_threads(name, T, processors):
    """Without a decay warps have different work, and wait for each other in pairs of roles; each is late once."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    call = make_call(VARIANTS[name], Shape(B=1, T=T, H=1, K=16, V=16, J=4), dtype=BF16)
    found = []
    for order in range(10):
        runs = Kernels(Emulator(order=order, processors=processors))
        register_backend(Backend("emulated", "", runs.forward, runs.backward, saved_like))
        found.append(evaluate(call, "emulated"))
        unregister_backend("emulated")
    for result, first in found[0].items():
        assert all(torch.equal(first, other[result]) for other in found[1:]), result


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_step(kernels, device, name, dtype):
    call = make_call(
        VARIANTS[name], Shape(B=2, T=1, H=2, K=16, V=32, J=3), dtype=dtype, device=device, requires_grad=False
    )
    expected = switching_delta_rule_step(**call, backend="reference")
    found = switching_delta_rule_step(**call, backend=kernels)
    torch.testing.assert_close(found.output, expected.output)
    for ours, theirs in zip(found.state, expected.state, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs)
    state = SwitchingState(*(None if t is None else t.clone() for t in call["initial_state"]))
    again = switching_delta_rule_step(**call | {"initial_state": state}, backend=kernels, inplace=True)
    assert torch.equal(again.output, found.output)
    for mine, ours, theirs in zip(state, again.state, found.state, strict=True):
        assert mine is ours
        assert mine is None or torch.equal(mine, theirs)


@pytest.mark.parametrize(("K", "V"), [(64, 32), (128, 16)])
def test_step_of_wider_heads(kernels, device, K, V):
    """A head takes several blocks, and a key more lanes."""
    call = make_call(Variant("key"), Shape(B=2, T=1, H=2, K=K, V=V, J=2), device=device, requires_grad=False)
    expected = switching_delta_rule_step(**call, backend="reference")
    found = switching_delta_rule_step(**call, backend=kernels)
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.state.W, expected.state.W)


@pytest.mark.parametrize("name", ["plain", "gated-temporal"])
def test_step_of_some_rows(kernels, device, name):
    call = make_call(VARIANTS[name], Shape(B=3, T=1, H=2, K=16, V=32, J=3), device=device, requires_grad=False)
    everywhere = switching_delta_rule_step(**call, backend=kernels)
    state = SwitchingState(*(None if t is None else t.clone() for t in call["initial_state"]))
    alive = torch.tensor([True, False, True], device=device)
    found = switching_delta_rule_step(**call | {"initial_state": state}, backend=kernels, inplace=True, alive=alive)
    assert torch.equal(found.output[alive], everywhere.output[alive])
    assert found.output.isfinite().all()
    for mine, before, after in zip(state, call["initial_state"], everywhere.state, strict=True):
        if mine is not None:
            assert torch.equal(mine[alive], after[alive])
            assert torch.equal(mine[~alive], before[~alive])
            assert not torch.equal(after[~alive], before[~alive])


def test_step_of_mixed_dtypes(kernels, device):
    call = make_call(
        VARIANTS["gated-temporal"],
        Shape(B=2, T=1, H=2, K=16, V=16, J=2),
        dtype=BF16,
        device=device,
        requires_grad=False,
    )
    call |= {name: call[name].float() for name in ("beta", "log_decay")}
    expected = switching_delta_rule_step(**call, backend="reference")
    found = switching_delta_rule_step(**call, backend=kernels)
    torch.testing.assert_close(found.output, expected.output)
    torch.testing.assert_close(found.state.W, expected.state.W)


@pytest.mark.parametrize("name", ["plain", "temporal", "gated-temporal"])
def test_step_without_a_state(kernels, device, name):
    """The first token of a text: W = 0, r and rho uniform."""
    call = make_call(
        VARIANTS[name], Shape(B=2, T=1, H=2, K=16, V=16, J=3), device=device, initial_state=False, requires_grad=False
    )
    expected = switching_delta_rule_step(**call, backend="reference")
    found = switching_delta_rule_step(**call, backend=kernels)
    torch.testing.assert_close(found.output, expected.output)
    for ours, theirs in zip(found.state, expected.state, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs)
    alone = switching_delta_rule_step(**call, backend=kernels, return_state=False)
    assert torch.equal(alone.output, found.output)
    assert alone.state is None


def test_step_in_place_of_a_strided_state(kernels, device):
    """A cache may keep its states in any layout; the step writes to it all the same."""
    call = make_call(
        VARIANTS["gated-temporal"], Shape(B=2, T=1, H=2, K=16, V=32, J=3), device=device, requires_grad=False
    )
    expected = switching_delta_rule_step(**call, backend=kernels)
    state = SwitchingState(*(t.mT.contiguous().mT for t in call["initial_state"]))
    assert not state.W.is_contiguous()
    switching_delta_rule_step(**call | {"initial_state": state}, backend=kernels, inplace=True)
    for mine, theirs in zip(state, expected.state, strict=True):
        assert torch.equal(mine, theirs)


@pytest.fixture
def gpu(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    return device


def test_auto_takes_the_kernels(gpu):
    problem = problem_of(make_call(dtype=BF16, device=gpu))
    assert choose_backend("auto", problem).name == "cuda"
    assert choose_backend("auto", problem, step=True).name == "cuda"


@pytest.mark.parametrize("name", ["plain", "gated-temporal", "gated-value"])
def test_same_inputs_same_bits(gpu, name):
    call = make_call(VARIANTS[name], Shape(B=3, T=200, H=4, K=64, V=64, J=4), dtype=BF16, device=gpu)
    first, second = (evaluate(call, "cuda") for _ in range(2))
    for key, value in first.items():
        assert torch.equal(value, second[key]), key


@pytest.mark.parametrize("name", ["temporal", "gated", "gated-value"])
def test_65536_tokens(gpu, name):
    """Against the same run in parts, whose states the operation carries.

    Without a decay roundings grow with random inputs: there the parts agree for as long as they are one.
    """
    shape = Shape(B=1, T=65536, H=1, K=64, V=64, J=4)
    call = make_call(VARIANTS[name], shape, dtype=BF16, device=gpu, initial_state=False)
    output = switching_delta_rule(**call, backend="cuda").output
    inputs = [call[key] for key in ("q", "k", "v", "beta", "key_logits")]
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(output.float().square().sum(), inputs))
    parts, state = [], None
    with torch.no_grad():
        for begin in range(0, 65536, 8192):
            tokens = {k: v[:, begin : begin + 8192] if k in PER_TOKEN else v for k, v in call.items()}
            part = switching_delta_rule(**tokens, initial_state=state, return_state=True, backend="cuda")
            parts.append(part.output)
            state = part.state
    split, whole = torch.cat(parts, 1).float(), output.detach().float()
    assert torch.equal(split[:, :8192], whole[:, :8192])
    assert 0.9 < split.norm() / whole.norm() < 1.1
    if name != "temporal":
        assert (split - whole).norm() < 2e-2 * whole.norm()


def test_more_than_two_billion_numbers(gpu):
    """Offsets do not fit into 32 bits: the last tokens of the last head, against those alone."""
    B, T, H, K, V, J = 1, 66_000, 128, 16, 64, 4
    wide = torch.rand(B, T, H, J, V, device=gpu, dtype=BF16)
    assert wide.numel() > 2**31
    q, k = (torch.nn.functional.normalize(torch.randn(B, T, H, K, device=gpu, dtype=BF16), dim=-1) for _ in range(2))
    v = torch.randn(B, T, H, V, device=gpu, dtype=BF16)
    with torch.no_grad():
        whole = switching_delta_rule(q, k, v, wide, wide, wide, backend="cuda").output[:, :, -1:]
        last = [x[:, :, -1:].contiguous() for x in (q, k, v, wide, wide, wide)]
        assert torch.equal(switching_delta_rule(*last, backend="cuda").output, whole)


@pytest.mark.unpoisoned
def test_compiles_to_one_graph(gpu):
    call = make_call(VARIANTS["gated-temporal"], Shape(B=1, T=40, H=2, K=32, V=32, J=4), dtype=BF16, device=gpu)

    def loss(**call):
        found = switching_delta_rule(**call, return_state=True)
        return found.output.float().sum() + found.state.W.sum()

    inputs = [call["q"], call["log_decay"], call["initial_state"].W]
    expected = torch.autograd.grad(loss(**call), inputs)
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(**call), inputs)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.unpoisoned
def test_captured_in_a_graph(gpu):
    """Forward, backward and step replay with new numbers in the same places; nothing waits for the device."""
    shape = Shape(B=2, T=40, H=2, K=32, V=32, J=4)
    call, other = (make_call(VARIANTS["gated-temporal"], shape, dtype=BF16, device=gpu, seed=seed) for seed in (0, 1))
    leaves = [t for t in call.values() if isinstance(t, torch.Tensor)]

    def work():
        output = switching_delta_rule(**call, backend="cuda").output
        return output, *torch.autograd.grad(output, leaves, torch.ones_like(output))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            captured = work()
    with torch.no_grad():
        for name, t in call.items():
            if isinstance(t, torch.Tensor):
                t.copy_(other[name])
    graph.replay()
    for ours, theirs in zip(captured, work(), strict=True):
        assert torch.equal(ours, theirs)
