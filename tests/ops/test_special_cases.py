"""J = 1 is DeltaNet, Gated DeltaNet and KDA, each written here on its own from its paper's recurrence."""

import pytest
import torch
from served import assert_near, fitting_call

from swila import switching_delta_rule
from swila.testing import Shape, Variant

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


@pytest.mark.parametrize("decay", [None, "head", "key"], ids=["DeltaNet", "GatedDeltaNet", "KDA"])
def test_one_mixture(asked_for, device, decay):
    call = fitting_call(asked_for, device, Variant(decay), SHAPE, initial_state=False)
    alpha = None if decay is None else call["log_decay"].exp()[..., 0, 0, :]
    expected = delta_net(call["q"], call["k"], call["v"], call["beta"][..., 0, :], alpha)
    out = switching_delta_rule(**call, backend=asked_for).output
    assert_near(out, expected, 1e-12)
    inputs = [call[x] for x in ("q", "k", "v", "beta", "log_decay") if x in call]
    weight = torch.randn_like(out)
    for ours, theirs in zip(
        torch.autograd.grad(out, inputs, weight), torch.autograd.grad(expected, inputs, weight), strict=True
    ):
        assert_near(ours, theirs)


def test_logits_of_one_mixture_do_not_matter(any_backend, device):
    call = fitting_call(any_backend, device, shape=SHAPE)
    out = switching_delta_rule(**call, backend=any_backend).output
    dkey, dquery = torch.autograd.grad(out.sum(), [call["key_logits"], call["query_logits"]])
    assert dkey.abs().max() < 1e-12
    assert dquery.abs().max() < 1e-12


def test_open_gates_are_the_plain_rule(any_backend, device):
    call = fitting_call(any_backend, device, Variant(key_temporal=True, query_temporal=True))
    gates = {gate: torch.ones_like(call[gate]) for gate in ("key_gate", "query_gate")}
    temporal = switching_delta_rule(**call | gates, backend=any_backend).output
    plain = {k: v for k, v in call.items() if k not in gates}
    plain["initial_state"] = call["initial_state"]._replace(r=None, rho=None)
    assert_near(temporal, switching_delta_rule(**plain, backend=any_backend).output, 1e-12)


def test_orders_of_decay_differ_only_with_decay(any_backend, device):
    call = fitting_call(any_backend, device, Variant("key"))
    outputs = {
        o: switching_delta_rule(**call | {"decay_order": o}, backend=any_backend).output for o in ("pre", "post")
    }
    assert (outputs["pre"] - outputs["post"]).abs().max() > 1e-3
    call["log_decay"] = torch.zeros_like(call["log_decay"])
    outputs = {
        o: switching_delta_rule(**call | {"decay_order": o}, backend=any_backend).output for o in ("pre", "post")
    }
    assert_near(outputs["pre"], outputs["post"], 1e-12)


def test_any_number_of_threads(any_backend, device):
    """Sequences and heads are shared out to threads, and every one is computed."""
    variant = Variant("key", key_temporal=True, query_temporal=True)
    call = fitting_call(any_backend, device, variant, Shape(B=3, T=5, H=1))
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            output = switching_delta_rule(**call, backend=any_backend).output
            found.append((output, *torch.autograd.grad(output.sum(), (call["k"], call["beta"]))))
    finally:
        torch.set_num_threads(threads)
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            torch.testing.assert_close(ours, theirs)
