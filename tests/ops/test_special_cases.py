"""J = 1 is DeltaNet, Gated DeltaNet and KDA, each written here on its own from its paper's recurrence."""

import pytest
import torch
from served import on_cpu

from swila import switching_delta_rule
from swila.testing import Shape, Variant, make_call

SHAPE = Shape(B=2, T=40, H=2, K=6, V=5, J=1)


def delta_net(q, k, v, beta, alpha=None):
    """``S_t = A S_{t-1} (I - ...)`` for a matrix state ``S [V, K]``; one learning rate per output dimension.

    ``alpha`` None is DeltaNet, a scalar Gated DeltaNet (``S (α (I - β k kᵀ)) + β v kᵀ``), a vector over K KDA
    (``S Diag(α) (I - β k kᵀ) + β v kᵀ``).
    """
    B, T, H, K = q.shape
    out = torch.zeros_like(v)
    for b in range(B):
        for h in range(H):
            S = q.new_zeros(v.shape[-1], K)
            for t in range(T):
                key, rate = k[b, t, h], beta[b, t, h].unsqueeze(-1)
                if alpha is not None:
                    S = S @ torch.diag(alpha[b, t, h].expand(K))
                S = S - rate * (S @ torch.outer(key, key)) + rate * torch.outer(v[b, t, h], key)
                out[b, t, h] = S @ q[b, t, h]
    return out


@pytest.mark.parametrize("name", [*on_cpu(), "auto"])
@pytest.mark.parametrize("decay", [None, "head", "key"], ids=["DeltaNet", "GatedDeltaNet", "KDA"])
def test_one_mixture(name, decay):
    call = make_call(Variant(decay), SHAPE, dtype=torch.float64, initial_state=False)
    alpha = None if decay is None else call["log_decay"].exp()[..., 0, 0, :]
    expected = delta_net(call["q"], call["k"], call["v"], call["beta"][..., 0, :], alpha)
    out = switching_delta_rule(**call, backend=name).output
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    inputs = [call[x] for x in ("q", "k", "v", "beta", "log_decay") if x in call]
    weight = torch.randn(out.shape, dtype=out.dtype)
    for ours, theirs in zip(
        torch.autograd.grad(out, inputs, weight), torch.autograd.grad(expected, inputs, weight), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("name", on_cpu())
def test_logits_of_one_mixture_do_not_matter(name):
    call = make_call(shape=SHAPE, dtype=torch.float64)
    out = switching_delta_rule(**call, backend=name).output
    dkey, dquery = torch.autograd.grad(out.sum(), [call["key_logits"], call["query_logits"]])
    assert dkey.abs().max() < 1e-12
    assert dquery.abs().max() < 1e-12


@pytest.mark.parametrize("name", on_cpu())
def test_open_gates_are_the_plain_rule(name):
    call = make_call(Variant(key_temporal=True, query_temporal=True), dtype=torch.float64)
    gates = {gate: torch.ones_like(call[gate]) for gate in ("key_gate", "query_gate")}
    temporal = switching_delta_rule(**call | gates, backend=name).output
    plain = {k: v for k, v in call.items() if k not in gates}
    plain["initial_state"] = call["initial_state"]._replace(r=None, rho=None)
    torch.testing.assert_close(temporal, switching_delta_rule(**plain, backend=name).output, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", on_cpu())
def test_orders_of_decay_differ_only_with_decay(name):
    call = make_call(Variant("key"), dtype=torch.float64)
    outputs = {o: switching_delta_rule(**call | {"decay_order": o}, backend=name).output for o in ("pre", "post")}
    assert (outputs["pre"] - outputs["post"]).abs().max() > 1e-3
    call["log_decay"] = torch.zeros_like(call["log_decay"])
    outputs = {o: switching_delta_rule(**call | {"decay_order": o}, backend=name).output for o in ("pre", "post")}
    torch.testing.assert_close(outputs["pre"], outputs["post"], atol=1e-12, rtol=1e-12)
