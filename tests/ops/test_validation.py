"""Every kind of bad input raises the ValueError that names the argument, what came and what is needed."""

import re

import pytest
import torch
from served import on_cpu

from swila import SwitchingState, set_value_checks, switching_delta_rule, switching_delta_rule_step
from swila.testing import VARIANTS, Shape, make_call

SHAPE = Shape(B=2, T=8, H=2, K=4, V=3, J=2)


@pytest.fixture(params=[*on_cpu(), "auto"])
def name(request):
    return request.param


def call(variant="gated-temporal", **changes):
    return make_call(VARIANTS[variant], SHAPE, requires_grad=False) | changes


def packed(bounds, **changes):
    return make_call(VARIANTS["plain"], SHAPE, lengths=[3, 5], requires_grad=False) | {
        "cu_seqlens": torch.tensor(bounds),
        **changes,
    }


def zeros(*shape, **options):
    return torch.zeros(shape, **options)


STATE = call()["initial_state"]
BAD = {
    "rank of q": (call(q=zeros(2, 8, 4)), "q must be [B, T, H, K] with no empty dimension, got shape [2, 8, 4]"),
    "no tokens": (call(q=zeros(2, 0, 2, 4)), "q must be [B, T, H, K] with no empty dimension, got shape [2, 0, 2, 4]"),
    "rank of beta": (call(beta=zeros(2, 8, 2)), "beta must be [B, T, H, J, V] with no empty dimension, got shape [2, 8, 2]"),
    "T of q": (call(q=zeros(2, 7, 2, 4)), "q must be [B, T, H, K] = [2, 8, 2, 4], got shape [2, 7, 2, 4]"),
    "H of q": (call(q=zeros(2, 8, 3, 4)), "q must be [B, T, H, K] = [2, 8, 2, 4], got shape [2, 8, 3, 4]"),
    "T of k": (call(k=zeros(2, 7, 2, 4)), "k must be [B, T, H, K] = [2, 8, 2, 4], got shape [2, 7, 2, 4]"),
    "k": (call(k=zeros(2, 8, 2, 5)), "k must be [B, T, H, K] = [2, 8, 2, 4], got shape [2, 8, 2, 5]"),
    "v": (call(v=zeros(2, 8, 2, 5)), "v must be [B, T, H, V] = [2, 8, 2, 3], got shape [2, 8, 2, 5]"),
    "rank of v": (call(v=zeros(2, 8, 3)), "v must be [B, T, H, V] with no empty dimension, got shape [2, 8, 3]"),
    "empty batch": (call(q=zeros(0, 8, 2, 4)), "q must be [B, T, H, K] with no empty dimension, got shape [0, 8, 2, 4]"),
    "V of beta": (call(beta=zeros(2, 8, 2, 2, 5)), "beta must be [B, T, H, J, V] = [2, 8, 2, 2, 3], got shape [2, 8, 2, 2, 5]"),
    "J of beta": (call(beta=zeros(2, 8, 2, 5, 3)), "beta must be [B, T, H, J, V] = [2, 8, 2, 2, 3], got shape [2, 8, 2, 5, 3]"),
    "V of v and beta": (
        call(v=zeros(2, 8, 2, 5), beta=zeros(2, 8, 2, 2, 5)),
        "key_logits must be [B, T, H, J, V] = [2, 8, 2, 2, 5], got shape [2, 8, 2, 2, 3]",
    ),
    "beta": (call(beta=zeros(2, 7, 2, 2, 3)), "beta must be [B, T, H, J, V] = [2, 8, 2, 2, 3], got shape [2, 7, 2, 2, 3]"),
    "key_logits": (
        call(key_logits=zeros(2, 8, 2, 3, 3)),
        "key_logits must be [B, T, H, J, V] = [2, 8, 2, 2, 3], got shape [2, 8, 2, 3, 3]",
    ),
    "query_logits": (
        call(query_logits=zeros(2, 8, 2, 2)),
        "query_logits must be [B, T, H, J, V] = [2, 8, 2, 2, 3], got shape [2, 8, 2, 2]",
    ),
    "key_gate": (call(key_gate=zeros(2, 8, 3)), "key_gate must be [B, T, H, V] = [2, 8, 2, 3], got shape [2, 8, 3]"),
    "query_gate": (call(query_gate=zeros(2, 8, 2, 2, 3)), "query_gate must be [B, T, H, V] = [2, 8, 2, 3], got shape"),
    "log_decay": (
        call(log_decay=zeros(2, 8, 2, 2, 3, 4)),
        "log_decay must be [B, T, H, J, 1, K] = [2, 8, 2, 2, 1, 4] (per key dim), [B, T, H, J, V, 1] = "
        "[2, 8, 2, 2, 3, 1] (per output dim) or [B, T, H, J, 1, 1] = [2, 8, 2, 2, 1, 1] (per head), "
        "got shape [2, 8, 2, 2, 3, 4]",
    ),
    "no k": (call(k=None), "k must be a torch.Tensor, got NoneType"),
    "no logits": (call(key_logits=None), "key_logits must be a torch.Tensor, got NoneType"),
    "sparse": (call(beta=zeros(2, 8, 2, 2, 3).to_sparse()), "beta must be a dense (strided) tensor, got layout torch.sparse_coo"),
    "state without W": (call(initial_state=(None, None, None)), "initial_state.W must be a torch.Tensor, got None"),
    "beta above one beside NaN": (
        call(beta=torch.tensor([1.5, float("nan"), 0.5]).expand(2, 8, 2, 2, 3)),
        "beta must have values within [0, 1], got values from 0.5 to 1.5",
    ),
    "not a tensor": (call(v=[1.0]), "v must be a torch.Tensor, got list"),
    "integers": (call(q=zeros(2, 8, 2, 4, dtype=torch.int64)), "q must be float32, bfloat16, float16 or float64, got torch.int64"),
    "mixed q and k": (call(k=zeros(2, 8, 2, 4).bfloat16()), "k must have the dtype of q, torch.float32, got torch.bfloat16"),
    "double beta": (call(beta=zeros(2, 8, 2, 2, 3).double()), "beta must be float32, bfloat16 or float16, got torch.float64"),
    "integer gate": (call(key_gate=zeros(2, 8, 2, 3).int()), "key_gate must be float32, bfloat16 or float16, got torch.int32"),
    "device": (call(v=torch.zeros(2, 8, 2, 3, device="meta")), "v must be on the device of q, cpu, got meta"),
    "device of the state": (
        call(initial_state=SwitchingState(torch.zeros(2, 2, 2, 3, 4, device="meta"))),
        "initial_state.W must be on the device of q, cpu, got meta",
    ),
    "decay_order": (call(decay_order="middle"), "decay_order must be 'pre' or 'post', got 'middle'"),
    "normalize": (call(normalize="yes"), "normalize must be True or False, got 'yes'"),
    "return_state": (call(return_state=1), "return_state must be True or False, got 1"),
    "routing_stats": (call(routing_stats=None), "routing_stats must be True or False, got None"),
    "state type": (call(initial_state=STATE.W), "initial_state must be a SwitchingState(W, r, rho), got a Tensor"),
    "state length": (call(initial_state=(STATE.W, None)), "initial_state must be a SwitchingState(W, r, rho), got a tuple of length 2"),
    "state shape": (
        call(initial_state=STATE._replace(W=zeros(2, 2, 2, 3, 5))),
        "initial_state.W must be [N, H, J, V, K] = [2, 2, 2, 3, 4], got shape [2, 2, 2, 3, 5]",
    ),
    "state dtype": (
        call(initial_state=STATE._replace(W=STATE.W.bfloat16())),
        "initial_state.W must be torch.float32 for q of torch.float32 (state is kept in full precision), got torch.bfloat16",
    ),
    "missing r": (call(initial_state=SwitchingState(STATE.W)), "initial_state.r is needed because key_gate is given, got None"),
    "needless rho": (
        make_call(VARIANTS["plain"], SHAPE) | {"initial_state": STATE._replace(r=None)},
        "initial_state.rho must be None because query_gate is None, got a tensor",
    ),
    "batch with cu_seqlens": (
        call("plain", cu_seqlens=torch.tensor([0, 8])),
        "q must have batch size B = 1 when cu_seqlens is given, got B = 2",
    ),
    "cu_seqlens shape": (packed([[0, 8]]), "cu_seqlens must be [N + 1] with N >= 1, got shape [1, 2]"),
    "cu_seqlens length": (packed([8]), "cu_seqlens must be [N + 1] with N >= 1, got shape [1]"),
    "cu_seqlens dtype": (packed([0.0, 3.0, 8.0]), "cu_seqlens must be int32 or int64, got torch.float32"),
    "cu_seqlens start": (packed([1, 3, 8]), "cu_seqlens must start at 0 and end at T = 8, got [1, 3, 8]"),
    "cu_seqlens end": (packed([0, 3, 9]), "cu_seqlens must start at 0 and end at T = 8, got [0, 3, 9]"),
    "cu_seqlens order": (
        packed([0, 5, 3, 8], initial_state=None),
        "cu_seqlens must increase strictly (no empty sequence), got [0, 5, 3, 8]",
    ),
    "empty sequence": (
        packed([0, 3, 3, 8], initial_state=None),
        "cu_seqlens must increase strictly (no empty sequence), got [0, 3, 3, 8]",
    ),
    "growing decay": (
        call(log_decay=torch.full((2, 8, 2, 2, 1, 1), 0.5)),
        "log_decay must have values at most 0, got values from 0.5 to 0.5",
    ),
    "beta above one": (call(beta=torch.full((2, 8, 2, 2, 3), 1.5)), "beta must have values within [0, 1], got values from 1.5"),
    "negative gate": (call(key_gate=torch.full((2, 8, 2, 3), -0.5)), "key_gate must have values within [0, 1], got values from -0.5"),
    "gate above one": (call(query_gate=torch.full((2, 8, 2, 3), 2.0)), "query_gate must have values within [0, 1], got values from 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(name, case):
    arguments, message = BAD[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        switching_delta_rule(**arguments, backend=name)


def test_unknown_backend():
    with pytest.raises(ValueError, match=r"backend must be 'auto' or one of .*'blocked', 'reference', got 'cudnn'"):
        switching_delta_rule(**call(), backend="cudnn")


@pytest.mark.parametrize("name", on_cpu())
def test_bounds_of_packed_sequences_are_always_checked(name, monkeypatch):
    """Both bring them to the host anyway; unchecked they would leave outputs unwritten."""
    from swila.ops import validation

    monkeypatch.setattr(validation, "_value_checks", "never")
    with pytest.raises(ValueError, match="cu_seqlens must start at 0 and end at T = 8"):
        switching_delta_rule(**packed([0, 3, 6]), backend=name)


def test_step_names_the_tensor_with_a_time_axis_too_many():
    token = {k: v[:, 0] if isinstance(v, torch.Tensor) else v for k, v in call().items()}
    token["v"] = call()["v"][:, :1]
    with pytest.raises(ValueError, match=r"v must have no time axis, as q has none: rank 3, got shape \[2, 1, 2, 3\]"):
        switching_delta_rule_step(**token)


@pytest.mark.parametrize("value", [["blocked"], None, 3])
def test_backend_must_be_a_name(value):
    with pytest.raises(ValueError, match="backend must be 'auto' or one of"):
        switching_delta_rule(**call(), backend=value)


def test_unknown_argument():
    with pytest.raises(TypeError, match="scale"):
        switching_delta_rule(**call(), scale=1.0)


def test_value_checks_can_be_switched(monkeypatch):
    from swila.ops import validation

    monkeypatch.setattr(validation, "_value_checks", None)
    bad = call(beta=torch.full((2, 8, 2, 2, 3), 1.5))
    set_value_checks("never")
    switching_delta_rule(**bad)
    set_value_checks("always")
    with pytest.raises(ValueError, match="beta"):
        switching_delta_rule(**bad)
    with pytest.raises(ValueError, match="value checks must be 'cpu', 'always' or 'never', got 'gpu'"):
        set_value_checks("gpu")
    monkeypatch.setattr(validation, "_value_checks", None)
    monkeypatch.setenv("SWILA_VALUE_CHECKS", "never")
    switching_delta_rule(**bad)


def test_values_on_a_gpu_are_read_only_if_asked_for(monkeypatch):
    """To read them stops the host until the device has caught up."""
    from swila.ops import validation

    for when, here, on_gpu in (("cpu", True, False), ("always", True, True), ("never", False, False)):
        monkeypatch.setattr(validation, "_value_checks", when)
        assert validation.values_are_checked(torch.device("cpu")) is here
        assert validation.values_are_checked(torch.device("cuda")) is on_gpu


def test_mixed_half_and_full_precision_is_welcome(name):
    """A bf16 layer computes its gates in float32."""
    mixed = make_call(VARIANTS["gated-temporal"], SHAPE, dtype=torch.bfloat16, requires_grad=False)
    for gate in ("log_decay", "beta", "key_gate"):
        mixed[gate] = mixed[gate].float()
    assert switching_delta_rule(**mixed, backend=name).output.dtype == torch.bfloat16


def test_plain_tuple_as_state(name):
    out = [switching_delta_rule(**call(initial_state=state), backend=name).output for state in (STATE, tuple(STATE))]
    assert torch.equal(*out)
