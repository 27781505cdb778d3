"""The backend of softmax attention that a benchmark takes: the fastest of those that serve the shape."""

import pytest
import torch

pytest.importorskip("transformers")

from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from swila.benchmarks.throughput import attention, contenders, training


def order():
    return [SDPBackend(each) for each in torch._C._get_sdp_priority_order()]


class Event:
    """A CUDA event by a clock that goes on by one at each record."""

    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.now += 1.0
        self.at = Event.now

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def test_the_fastest_of_those_that_serve_is_taken(monkeypatch):
    for times, wanted in (
        ({"flash": 2.0, "cudnn": 1.0, "efficient": 3.0}, "cudnn"),
        ({"flash": 2.0, "cudnn": None, "efficient": 3.0}, "flash"),
    ):
        monkeypatch.setattr(attention, "milliseconds", lambda name, inputs, times=times: times[name])
        served = {name: ms for name, ms in times.items() if ms is not None}
        assert attention.fastest([]) == {"backend": wanted, "ms": served}
    monkeypatch.setattr(attention, "milliseconds", lambda name, inputs: None)
    assert attention.fastest([]) is None


def test_only_softmax_attention_on_a_gpu_has_a_choice():
    for model in ("transformer", "swila"):
        made = contenders.make_model(model, "tiny", "cpu", torch.float32)
        assert attention.choose(made, 2, 8, backward=True) is None


@pytest.mark.parametrize("backward", [False, True])
def test_inputs_are_those_of_the_layer(backward):
    mixer = contenders.make_model("transformer", "tiny", "cpu", torch.bfloat16).model.layers[0].mixer
    mixer.num_kv_heads = 1
    q, k, v = attention.inputs_of(mixer, 2, 8, backward)
    assert q.shape == (2, mixer.num_heads, 8, mixer.head_dim)
    assert k.shape == v.shape == (2, 1, 8, mixer.head_dim)
    assert q.dtype == torch.bfloat16
    assert q.transpose(1, 2).is_contiguous()
    assert all(x.is_leaf for x in (q, k, v))
    assert [x.requires_grad for x in (q, k, v)] == [backward] * 3


def test_a_backend_is_timed_alone(clock, monkeypatch):
    seen, gradients = [], []
    attend, grad = F.scaled_dot_product_attention, torch.autograd.grad
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *x, **more: seen.append(more) or attend(*x, **more))
    monkeypatch.setattr(torch.autograd, "grad", lambda *x: gradients.append(len(x[1])) or grad(*x))
    inputs = [torch.randn(1, 4, 8, 16, requires_grad=True), *(torch.randn(1, 2, 8, 16, requires_grad=True),) * 2]
    assert attention.milliseconds("flash", inputs) == 1.0
    calls = attention.WARM_UP + attention.REPEATS
    assert seen == [{"is_causal": True, "enable_gqa": True}] * calls
    assert gradients == [3] * calls
    assert attention.milliseconds("cudnn", inputs) is None, "a CPU does not have it"

    def full(*x, **more):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(F, "scaled_dot_product_attention", full)
    with pytest.raises(torch.OutOfMemoryError):
        attention.milliseconds("flash", inputs)


def test_the_choice_comes_first_and_only_within_the_context():
    before = order()
    for name, backend in attention.BACKENDS.items():
        with attention.preferring({"backend": name}):
            assert order()[0] == backend
            assert set(order()[:4]) == {*attention.BACKENDS.values(), SDPBackend.MATH}
            assert torch.backends.cuda.math_sdp_enabled()
        assert order() == before
    with attention.preferring(None):
        assert order() == before


def test_updates_are_timed_with_the_choice(monkeypatch):
    chosen, seen = {"backend": "efficient", "ms": {"efficient": 1.0}}, []
    monkeypatch.setattr(
        training, "choose", lambda model, batch, length, backward: seen.append((batch, length, backward)) or chosen
    )
    monkeypatch.setattr(training, "update", lambda *_: seen.append(order()[0]) or torch.zeros(()))
    monkeypatch.setattr(training, "check", lambda *_: None)
    case, setting = training.Case("transformer", 4, 8, False), training.Setting("tiny", "cpu", torch.float32)
    row = training.measure(case, 2, setting, None, lambda text: None)
    assert row["attention"] == chosen
    assert seen == [(2, 4, True), *[SDPBackend.EFFICIENT_ATTENTION] * 6]
