"""Throughput of whole models: which rows there are, what happens without memory or with wrong numbers, and profiles."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from swila.benchmarks.throughput import checks, contenders, generation, memory, training
from swila.benchmarks.throughput.kernels import REST, by_kind, kind_of
from swila.benchmarks.throughput.results import Results

CPU = training.Setting("tiny", "cpu", torch.float32, warm_up=1, updates=2)
ENVIRONMENT = {"date": "today", "sources": "abc", "torch": "2", "cuda": None, "packages": {}, "gpus": []}


def results(path, keys=training.KEYS, settings=None, fresh=False, **environment):
    return Results(path / "r.json", settings or {"size": "tiny"}, ENVIRONMENT | environment, keys, fresh)


@pytest.fixture
def unchecked(monkeypatch):
    monkeypatch.setattr(training, "why_refused", lambda *_: (None, {"loss": 0.0}))


def case(model="swila", length=16, batch=4):
    return training.Case(model, length, batch, False)


def test_a_row_has_throughput_of_the_mean_update(unchecked, tmp_path, monkeypatch):
    clock = iter([0.0, 1.0, 10.0, 13.0])
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    kept = results(tmp_path)
    (row,) = training.benchmark([case()], CPU, kept)
    assert (row["status"], row["micro_batch"], row["kernel"]) == ("timed", 4, "auto")
    assert row["update_ms"] == 2000
    assert row["tokens_per_second"] == 64 / 2
    assert row["turns_ms"] == [1000, 3000]
    assert len(row["losses"]) == 3
    assert row["losses"][-1] < row["losses"][0], "the same batch again"
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["rows"] == [row | {"session": 0}]
    assert written["checks"] == {"swila, eager": {"reason": None, "errors": {"loss": 0.0}}}


def losses_and_weights(micro_batch):
    model = contenders.make_model("swila", "tiny", "cpu", torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    tokens = torch.randint(512, (4, 12), generator=torch.Generator().manual_seed(0))
    loss = training.update(model, optimizer, tokens, micro_batch)
    assert all(p.grad is None for p in model.parameters())
    return loss, model.lm_head.weight.detach()


def test_gradients_of_micro_batches_are_accumulated():
    whole, parts = losses_and_weights(4), losses_and_weights(1)
    # load balancing is over the tokens of a micro-batch, so that sums differ a little
    assert parts[0].item() == pytest.approx(whole[0].item(), rel=1e-3)
    torch.testing.assert_close(parts[1], whole[1], rtol=0, atol=2e-4)


def test_gradients_are_clipped(monkeypatch):
    norms = []
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, norm: norms.append(norm))
    losses_and_weights(4)
    assert norms == [1.0]


NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory")


def without_memory(largest, error=NO_MEMORY):
    """A loss for which there is memory for up to so many tokens."""

    def loss_of(model, tokens):
        if tokens.numel() > largest:
            raise error
        return contenders.loss_of(model, tokens)

    return loss_of


def test_a_micro_batch_without_memory_is_halved_and_remembered(unchecked, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "loss_of", without_memory(40))
    said = []
    kept = results(tmp_path)
    rows = training.benchmark([case(), case(length=8, batch=8)], CPU, kept, said.append)
    assert [(row["batch"], row["micro_batch"], row["status"]) for row in rows] == [(4, 2, "timed"), (8, 4, "timed")]
    tried = [text for text in said if "at a time" in text]
    assert [text.rpartition(", ")[2] for text in tried] == ["4 at a time", "2 at a time", "4 at a time"]
    assert training._first_micro_batch(case("gdn"), CPU, kept) == 4, "another model"
    assert training._first_micro_batch(case("gdn"), CPU._replace(micro_tokens=32), kept) == 2
    assert training._first_micro_batch(case("gdn"), CPU._replace(micro_tokens=1), kept) == 1


def test_a_case_without_memory_and_one_that_fails_lose_nothing(unchecked, tmp_path, monkeypatch):
    failing = without_memory(16, RuntimeError("a wrapper"))
    wrapped = RuntimeError("a wrapper")
    wrapped.__cause__ = torch.OutOfMemoryError("no more")

    def loss_of(model, tokens):
        if tokens.shape[1] == 8:
            return failing(model, tokens)
        return without_memory(16, wrapped)(model, tokens)

    monkeypatch.setattr(training, "loss_of", loss_of)
    cases = [case(length=32, batch=2), case(length=8, batch=4), case(length=16, batch=1)]
    rows = training.benchmark(cases, CPU, results(tmp_path))
    assert [row["status"] for row in rows] == ["out of memory", "failed", "timed"]
    assert rows[0]["reason"] == "1 of 32 tokens: RuntimeError: a wrapper"
    assert rows[0]["micro_batch"] is None
    assert rows[1]["reason"] == "RuntimeError: a wrapper"
    # the next process repeats what failed, and neither what was timed nor what had no memory
    monkeypatch.setattr(training, "loss_of", contenders.loss_of)
    kept = results(tmp_path)
    (row,) = training.benchmark(cases, CPU, kept)
    assert (row["length"], row["status"]) == (8, "timed")
    assert [(row["length"], row["session"]) for row in kept.record["rows"]] == [(32, 0), (16, 0), (8, 1)]


def test_results_of_other_settings_are_not_continued(tmp_path):
    results(tmp_path).add({"model": "a", "length": 1, "batch": 1, "compiled": True, "status": "timed"})
    with pytest.raises(ValueError, match=r"size is tiny there and 1.3b here; give another file, or --fresh"):
        results(tmp_path, settings={"size": "1.3b"})
    with pytest.raises(ValueError, match="sources is abc there and xyz here"):
        results(tmp_path, sources="xyz")
    assert len(results(tmp_path, date="tomorrow").record["rows"]) == 1
    assert json.loads((tmp_path / "r.json").read_text())["dates"] == ["today", "tomorrow"]
    assert results(tmp_path, fresh=True, sources="xyz").record["rows"] == []
    with pytest.raises(ValueError, match="out must be a file"):
        Results(tmp_path, {}, ENVIRONMENT, ())


def test_a_wrong_model_is_not_timed_at_any_length(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(training, "why_refused", lambda *given: asked.append(given) or ("wrong: all", {"loss": 1.0}))
    rows = training.benchmark([case(), case(length=8)], CPU, results(tmp_path))
    assert [(row["status"], row["reason"]) for row in rows] == [("refused", "wrong: all")] * 2
    assert all("tokens_per_second" not in row for row in rows)
    assert len(asked) == 1, "the check of a model is kept"


@pytest.mark.parametrize("model", ["transformer", "gdn", "hybrid-temporal-swila"])
def test_right_models_pass_the_check(model):
    reason, errors = checks.why_refused(model, "tiny", "cpu", torch.float32, False)
    assert reason is None
    assert errors["gradients"] < 1e-4
    assert ("recurrence, output" in errors) == (model != "transformer")


def test_a_wrong_gradient_is_found(monkeypatch):
    """A gate whose gradient is lost in the model that would be timed, but not by plain torch."""
    make = contenders.make_model

    def wrong(*arguments):
        model = make(*arguments)
        for block in model.model.layers:
            block.mlp.up.weight.register_hook(lambda g: 0.5 * g)
        return model

    monkeypatch.setattr(checks, "make_model", wrong)
    monkeypatch.setattr(checks, "_kernels", lambda *_: (None, {}))
    reason, errors = checks.why_refused("swila", "tiny", "cpu", torch.float32, False)
    assert reason.startswith("wrong: loss off by ")
    assert errors["gradients"] > 0.05 > 0.01 > errors["gradients of plain torch"]
    assert errors["loss"] < 1e-5


def test_a_wrong_loss_and_nan_are_found(monkeypatch):
    monkeypatch.setattr(checks, "_kernels", lambda *_: (None, {}))
    for errors, right in (
        ((0.001, 0.03, 0.02), True), ((0.02, 0.03, 0.02), False), ((0.001, 0.06, 0.02), False),
        ((float("nan"), 0.0, 0.0), False), ((0.0, float("nan"), 0.0), False),
    ):  # fmt: skip
        monkeypatch.setattr(checks, "gradient_errors", lambda *_, errors=errors: errors)
        reason, _ = checks.why_refused("swila", "tiny", "cpu", torch.bfloat16, False)
        assert (reason is None) == right, errors


def test_a_wrong_recurrence_is_found(monkeypatch):
    monkeypatch.setattr(checks, "verdict", lambda *_: ("wrong: d k off by 1", True, "", {"d k": 1.0}))
    reason, errors = checks.why_refused("temporal-swila", "tiny", "cpu", torch.float32, False)
    assert (reason, errors) == ("its recurrence: wrong: d k off by 1", {"recurrence, d k": 1.0})


@pytest.mark.parametrize(
    ("model", "variant", "J", "K"),
    [("swila", "plain", 4, 32), ("temporal-swila", "temporal", 4, 32), ("gdn", "gated-head", 1, 64)],
)
def test_the_recurrence_is_checked_at_the_shape_of_the_model(monkeypatch, model, variant, J, K):
    given = []
    monkeypatch.setattr(checks, "verdict", lambda backend, *rest: given.append(rest) or (None, False, "", {}))
    checks._kernels(model, "tiny", "cpu", torch.float32)
    ((shape, form, dtype, device),) = given
    assert (shape.H, shape.J, shape.K, shape.V) == (2, J, K, K)
    assert (form, dtype, device) == (checks.VARIANTS[variant], torch.float32, "cpu")


def test_errors_that_mean_no_memory():
    assert memory.out_of_memory(torch.OutOfMemoryError("x"))
    assert memory.out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"))
    assert not memory.out_of_memory(RuntimeError("illegal memory access"))
    assert not memory.out_of_memory(None)
    later = RuntimeError("capture failed")
    later.__context__ = torch.OutOfMemoryError("x")
    assert memory.out_of_memory(later)
    assert memory.in_short(ValueError("a\nb")) == "ValueError: a"


def test_the_baseline_has_our_dimensions_and_its_fused_loss(monkeypatch):
    made = {}
    models = SimpleNamespace(GatedDeltaNetConfig=lambda **fields: made.update(fields), GatedDeltaNetForCausalLM=str)
    monkeypatch.setitem(__import__("sys").modules, "fla.models", models)
    contenders.fla_model(contenders.config_of("fla-gdn", "1.3b"))
    named = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "num_heads", "head_dim", "expand_v")
    assert [made[name] for name in named] == [2048, 24, 4928, 32000, 16, 128, 1.0]
    assert (made["fuse_cross_entropy"], made["fuse_linear_cross_entropy"]) == (False, True)
    assert made["use_gate"]
    assert made["fuse_norm"]
    assert made["fuse_swiglu"]


def test_gdn_uses_its_kernel_where_it_is_installed(monkeypatch):
    assert contenders.kernel_of("gdn") == "auto"
    monkeypatch.setattr(contenders.fla, "unusable", lambda: None)
    assert [contenders.kernel_of(name) for name in ("gdn", "hybrid-gdn", "fla-gdn", "swila")] == ["fla"] * 3 + ["auto"]
    model = contenders.make_model("hybrid-gdn", "tiny", "cpu", torch.float32, kernel="fla")
    assert [getattr(block.mixer, "backend", None) for block in model.model.layers] == ["fla"] * 3 + [None]


def test_kinds_of_kernels():
    kinds = {
        "swila_backward_plain": "recurrence",
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": "recurrence",
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN": "matrix products",
        "void pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>": "attention",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop": "attention",
        "cross_entropy_kernel": "loss of the head",
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>": "optimizer and clipping",
        "triton_poi_fused_silu_0": "elementwise, compiled",
        "void at::native::vectorized_elementwise_kernel<4>": REST,
        "causal_conv1d_fwd_kernel": "fused kernels in Triton",
        "rms_norm_backward_kernel": "fused kernels in Triton",
        "Memcpy DtoD (Device -> Device)": REST,
    }
    assert {name: kind_of(name) for name in kinds} == kinds
    assert list(by_kind([("at::a", 1.0), ("nvjet", 2.0), ("at::b", 0.5)]).items()) == [
        ("matrix products", 2.0),
        (REST, 1.5),
    ]


def test_ratios_are_to_the_baseline_at_the_same_length():
    rows = [
        {"model": model, "length": T, "batch": 2, "speed": speed}
        for model, T, speed in (("fla-gdn", 8, 2.0), ("fla-gdn", 16, 4.0), ("swila", 16, 6.0), ("swila", 32, 6.0))
    ]
    assert training.ratio({"rows": rows}, rows[2], "speed") == 1.5
    assert training.ratio({"rows": rows}, rows[3], "speed") is None
    assert training.ratio({"rows": rows}, rows[2], "peak") is None
    assert training.ratio({"rows": rows}, rows[2], "speed", "fla-gdn-tf32") is None


def test_products_in_tf32_are_for_one_baseline_alone():
    before = torch.get_float32_matmul_precision()
    for model, precision in (("fla-gdn-tf32", "high"), ("fla-gdn", before), ("swila", before)):
        with contenders.products_of(model):
            assert torch.get_float32_matmul_precision() == precision
        assert torch.get_float32_matmul_precision() == before


def test_the_gradients_that_are_checked_are_those_that_are_timed(monkeypatch):
    seen, one = [], {"w": torch.ones(1)}
    model = SimpleNamespace(state_dict=lambda: {}, config=SimpleNamespace(vocab_size=5))
    monkeypatch.setattr(checks, "make_model", lambda *_: model)
    monkeypatch.setattr(
        checks, "_gradients", lambda *_: seen.append(torch.get_float32_matmul_precision()) or (1.0, one)
    )
    monkeypatch.setattr(checks, "_plainly", lambda *_: seen.append(torch.get_float32_matmul_precision()) or (1.0, one))
    checks.gradient_errors("fla-gdn-tf32", "tiny", "cpu", torch.float32, False)
    assert seen == ["high", *[torch.get_float32_matmul_precision()] * 2]


def test_updates_are_timed_with_their_products_and_checked_without(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(training, "timed_model", lambda *_, **__: nn.Linear(2, 2))
    monkeypatch.setattr(training, "choose", lambda *_, **__: None)
    monkeypatch.setattr(nn.Linear, "config", SimpleNamespace(vocab_size=5), raising=False)
    note = lambda what, found: seen.append((what, torch.get_float32_matmul_precision())) or found  # noqa: E731
    monkeypatch.setattr(training, "update", lambda *_: note("update", torch.zeros(())))
    monkeypatch.setattr(training, "check", lambda *_: note("check", None))
    before = torch.get_float32_matmul_precision()
    case, setting = training.Case("fla-gdn-tf32", 4, 2, False), training.Setting("tiny", "cpu", torch.float32)
    training.measure(case, 2, setting, None, lambda text: None)
    assert seen == [*[("update", "high")] * 3, ("check", before), *[("update", "high")] * 3]


GENERATION = generation.Setting("tiny", "cpu", torch.float32, prompt=6, new=4, compiled=False, calls=2)


def test_generation_counts_new_tokens_over_the_whole_call(monkeypatch):
    clock = iter([0.0, 5.0, 9.0, 9.0, 9.5, 9.9, 10.0, 11.0, 14.0, 20.0, 23.0, 30.0])
    monkeypatch.setattr(generation, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    model = contenders.make_model("swila", "tiny", "cpu", torch.float32).eval()
    row = generation.measure(model, 3, GENERATION)  # calls of 4 and 10 s, with prompts of 1 and 3 s
    assert (row["call_ms"], row["prompt_ms"], row["step_ms"]) == (7000, 2000, 5000 / 4)
    assert row["tokens_per_second"] == 3 * 4 / 7
    assert row["turns_ms"] == [4000, 10000]
    assert GENERATION.warm_up == 2, "a graph for the prompts is captured in the second call"


@pytest.fixture
def generating(monkeypatch):
    """Generation that is right, quick, and without memory for more than two rows."""
    monkeypatch.setattr(generation, "refused", lambda name, device: None)
    monkeypatch.setattr(generation, "forward_ms", lambda model, batch, setting: 10.0 * batch)
    asked = []

    def measure(model, batch, setting):
        asked.append(batch)
        if batch > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"tokens_per_second": 1.0, "prompt_ms": 30.0, "step_ms": 2.0, "peak_bytes": 1}

    monkeypatch.setattr(generation, "measure", measure)
    return asked


def test_batches_grow_until_one_has_no_memory(generating, tmp_path):
    kept = results(tmp_path, generation.KEYS)
    rows = generation.benchmark(["swila"], [8, 4, 1, 2], GENERATION, kept)
    assert generating == [1, 2, 4]
    assert [(row["batch"], row["status"]) for row in rows] == [(1, "timed"), (2, "timed"), (4, "out of memory")]
    assert [row.get("forward_ms") for row in kept.record["rows"]] == [None, 20.0, None], "at the largest that fits"
    assert generation.benchmark(["swila"], [8, 4, 1, 2], GENERATION, results(tmp_path, generation.KEYS)) == []
    assert generating == [1, 2, 4], "neither what was measured nor larger batches"


def test_a_forward_without_memory_is_at_a_smaller_batch(generating, tmp_path, monkeypatch):
    def forward(model, batch, setting):
        if batch > 1:
            raise torch.OutOfMemoryError("x")
        return 7.0

    monkeypatch.setattr(generation, "forward_ms", forward)
    kept = results(tmp_path, generation.KEYS)
    generation.benchmark(["swila"], [1, 2], GENERATION, kept)
    assert [row.get("forward_ms") for row in kept.record["rows"]] == [7.0, None]
    monkeypatch.setattr(generation, "forward_ms", lambda *_: 1 / 0)
    kept = results(tmp_path, generation.KEYS, fresh=True)
    generation.benchmark(["swila"], [1, 2], GENERATION, kept)
    assert kept.record["rows"][1]["forward_failed"].startswith("ZeroDivisionError")


def test_the_floor_of_a_step_is_to_read_the_weights_once(generating, tmp_path):
    kept = results(tmp_path, generation.KEYS)
    kept.record["copy_bytes_per_ms"] = 1000.0
    generation.benchmark(["swila"], [1, 2], GENERATION, kept)
    one, two = kept.record["rows"]
    model = contenders.make_model("swila", "tiny", "cpu", torch.float32)
    assert one["weights_ms"] == pytest.approx(4 * sum(p.numel() for p in model.parameters()) / 1000)
    assert "weights_ms" not in two


def test_models_that_generate_other_tokens_are_rows_that_say_so(generating, tmp_path, monkeypatch):
    reasons = {"swila-tiny": "other tokens", "gdn-tiny": None}
    monkeypatch.setattr(generation, "refused", lambda name, device: reasons[name])
    rows = generation.benchmark(["swila", "transformer", "gdn"], [1], GENERATION, results(tmp_path, generation.KEYS))
    assert [(row["model"], row["status"]) for row in rows] == [
        ("swila", "refused"), ("transformer", "refused"), ("gdn", "timed"),
    ]  # fmt: skip
    assert rows[0]["reason"] == "other tokens"
    assert rows[1]["reason"] == "crashed: KeyError: 'transformer-tiny'"


@pytest.mark.parametrize(("model", "kernel", "compiled"), [
    ("hybrid-gdn", "fla", {3: True}), ("hybrid-gdn", "auto", dict.fromkeys(range(4), True)), ("gdn", "fla", {}),
])  # fmt: skip
def test_blocks_on_other_kernels_stay_eager(monkeypatch, model, kernel, compiled):
    found = {}
    made = contenders.make_model(model, "tiny", "cpu", torch.float32, depth=4, kernel=kernel)
    monkeypatch.setattr(torch, "compile", lambda forward, fullgraph, dynamic: found.update({forward: fullgraph}))
    forwards = [block.forward for block in made.model.layers]
    checks.compile_blocks(made)
    assert {forwards.index(forward): whole for forward, whole in found.items()} == compiled


def test_a_forward_is_of_the_prompts_without_a_cache(monkeypatch):
    model = contenders.make_model("swila", "tiny", "cpu", torch.float32).eval()
    calls, compiled = [], []
    monkeypatch.setattr(model.model, "forward", lambda ids, use_cache: calls.append((ids.shape, use_cache)))
    monkeypatch.setattr(generation, "compile_blocks", compiled.append)
    monkeypatch.setattr(generation, "compiling", nullcontext)
    assert generation.forward_ms(model, 3, GENERATION._replace(compiled=True)) > 0
    assert calls == [((3, 6), False)] * 4, "two warm up"
    assert compiled == [model]
