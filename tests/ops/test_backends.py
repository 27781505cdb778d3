"""Choosing a backend: the order, refusals, the one warning, and a new backend without touching an old one."""

import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from served import on_cpu

from swila import register_backend, switching_delta_rule
from swila.ops import backends
from swila.ops.backends import choose_backend, get_backend
from swila.ops.call import Inputs, Options, Problem
from swila.testing import Shape, Variant, make_call


@pytest.fixture
def problem():
    call = make_call()
    x = Inputs(*(call[name] for name in ("q", "k", "v", "beta", "key_logits", "query_logits")))
    return Problem.of(x, Options(), needs_grad=False)


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(backends, "_registered", {})
    monkeypatch.setattr(backends, "_said", set())
    return backends._registered


def test_auto_takes_the_fastest(problem):
    assert choose_backend("auto", problem).name == on_cpu()[0]
    assert choose_backend("auto", replace(problem, device="meta")).name == "blocked"


def test_new_backend_goes_first_and_serves_calls(registry):
    calls = []

    def forward(x, options, save):
        calls.append(x.q.shape)
        return get_backend("blocked").forward(x, options, save)

    register_backend(replace(get_backend("blocked"), name="mine", forward=forward))
    call = make_call()
    out = switching_delta_rule(**call).output
    torch.testing.assert_close(out, switching_delta_rule(**call, backend="blocked").output)
    assert calls == [call["q"].shape]
    torch.autograd.grad(out.sum(), call["q"])


def test_a_backend_is_asked_about_the_call_as_it_is(registry):
    asked = []
    register_backend(replace(get_backend("blocked"), name="mine", refuses=asked.append))
    shape = Shape(H=2, K=5, V=4, J=3)
    call = make_call(Variant("value", "post", key_temporal=True, normalize=False), shape, lengths=[3, 2])
    switching_delta_rule(**call, backend="mine")
    assert asked[0] == Problem(
        "cpu", torch.float32, B=1, T=5, H=2, K=5, V=4, J=3, decay="value", decay_order="post", key_temporal=True,
        query_temporal=False, normalize=False, packed=True, routing_stats=False, needs_grad=True,
    )  # fmt: skip
    call = make_call(Variant(query_temporal=True), shape, requires_grad=False)
    switching_delta_rule(**call, routing_stats=True, backend="mine")
    found = asked[-1]
    assert (found.decay, found.key_temporal, found.query_temporal, found.packed) == (None, False, True, False)
    assert (found.routing_stats, found.needs_grad) == (True, False)


def test_named_backend_never_falls_back(registry, problem):
    register_backend(replace(get_backend("blocked"), name="picky", refuses=lambda p: f"K must be 64, got {p.K}"))
    with pytest.raises(ValueError, match="backend 'picky' cannot serve this call: K must be 64, got 16"):
        switching_delta_rule(**make_call(), backend="picky")
    assert choose_backend("auto", problem).name != "picky"
    register_backend(replace(get_backend("blocked"), name="absent", unusable=lambda: "no such device"))
    with pytest.raises(ValueError, match="backend 'absent' cannot serve this call: no such device"):
        choose_backend("absent", problem)


def test_slow_choice_on_a_gpu_is_said_once(registry, problem):
    register_backend(replace(get_backend("blocked"), name="picky", refuses=lambda p: "K must be 64"))
    on_gpu = replace(problem, device="cuda", dtype=torch.float64)  # which no kernel takes
    with pytest.warns(
        UserWarning, match="'blocked' backend .* on cuda, which is slow there: picky: K must be 64; cuda: .*; numba: "
    ):
        choose_backend("auto", on_gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_backend("auto", on_gpu)
        choose_backend("blocked", on_gpu)


def test_names_are_unique_and_auto_is_taken(registry):
    register_backend(get_backend("blocked"))
    assert backends.backend_names() == ["cuda", "numba", "blocked", "reference"]
    with pytest.raises(ValueError, match="got 'auto'"):
        register_backend(replace(get_backend("blocked"), name="auto"))


def test_forward_mode_is_refused_or_right():
    call = make_call(requires_grad=False, initial_state=False)
    tangent = torch.ones_like(call["v"])

    def output(v, name):
        return switching_delta_rule(**call | {"v": v}, backend=name).output

    with pytest.raises(ValueError, match="backend 'blocked' has no forward-mode derivative"):
        torch.func.jvp(lambda v: output(v, "blocked"), (call["v"],), (tangent,))
    _, found = torch.func.jvp(lambda v: output(v, "reference"), (call["v"],), (tangent,))
    h = 1e-3
    difference = (output(call["v"] + h, "reference") - output(call["v"] - h, "reference")) / (2 * h)
    torch.testing.assert_close(found, difference, atol=1e-2, rtol=1e-2)


def test_a_missing_package_is_named(registry, monkeypatch, problem):
    missing = get_backend("numba").unusable.__wrapped__
    monkeypatch.setattr("swila.ops.numba.backend.find_spec", lambda name: None)
    register_backend(replace(get_backend("numba"), unusable=missing))
    with pytest.raises(
        ValueError, match=r"backend 'numba' cannot serve this call: numba is not installed: pip install"
    ):
        choose_backend("numba", problem)
    assert choose_backend("auto", problem).name == "blocked"


def test_import_needs_torch_alone():
    code = (
        "import sys, time; import torch; before = set(sys.modules); start = time.perf_counter(); import swila; "
        "took = time.perf_counter() - start; new = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "assert not new & {'numpy', 'triton', 'typer', 'rich', 'transformers', 'matplotlib', 'numba', 'cuda'}, new; "
        "assert 'swila.ops.blocked.backend' not in sys.modules; print(took)"
    )
    took = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert float(took) < 0.3
