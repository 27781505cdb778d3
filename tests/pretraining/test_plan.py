"""Plans: traced activations against hand counts and measurements, arithmetic, and the engine's sharding at 64 ranks."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rich.console import Console

from swila.benchmarks.pretraining import benchmarked
from swila.cli.plan import show_plan
from swila.models.language.configuration import SwiLAConfig
from swila.ops.backends import registered_backends
from swila.ops.cuda.backend import BACKEND
from swila.ops.fused.choice import use_fused
from swila.pretraining import activations, memory, sharding
from swila.pretraining.activations import kept_bytes
from swila.pretraining.communication import EFFICIENCY, communication
from swila.pretraining.gpus import GPUS
from swila.pretraining.memory import Sizes
from swila.pretraining.plan import RESERVE, plan
from swila.pretraining.recipe import DataRecipe, ExecutionRecipe, ModelRecipe, Recipe, ScheduleRecipe
from swila.pretraining.sharding import check_sharding
from swila.pretraining.skeleton import skeleton

D, INNER, HEADS, VOCABULARY, LAYERS, T = 64, 96, 4, 128, 4, 64
MEASURED = json.loads((Path(__file__).parents[2] / "results" / "pretraining-cuda.json").read_text())
KEPT = 1000 * T  # bytes that a block keeps of one sequence, where tracing is replaced


def model_recipe(mixer="gated-deltanet", **changes):
    given = {"mixer_options": {"num_heads": HEADS}, "vocab_size": VOCABULARY, **changes}
    return ModelRecipe(D, LAYERS, INNER, mixer, **given)


def recipe_of(batch_size=64, length=T, model=None, precision="bfloat16", **execution):
    return Recipe(
        "made-up",
        "",
        model or model_recipe(),
        ScheduleRecipe(steps=1000),
        DataRecipe(length, batch_size),
        precision=precision,
        execution=ExecutionRecipe(**execution),
    )


@pytest.fixture
def untraced(monkeypatch):
    """Blocks keep ``KEPT`` bytes of a sequence."""
    monkeypatch.setattr(memory, "kept_bytes", lambda *_: KEPT)


def block_bytes(mixer, compiled=False, length=T, dtype=torch.bfloat16, **options):
    config = SwiLAConfig(VOCABULARY, D, 1, INNER, mixer, options)
    return kept_bytes(config, 0, length, dtype, compiled)


def test_a_block_with_attention_keeps_what_a_count_by_hand_says():
    found = block_bytes("attention", num_heads=HEADS, rope_theta=None)
    # normed, q, k, v, output, the sum of input and output; gate and up
    assert found == T * (2 * (6 * D + 2 * INNER) + 4 * HEADS)
    with use_fused(False):
        found = block_bytes("attention", num_heads=HEADS, rope_theta=None)
    # also the scales of two norms, the second one's output, silu(gate) and its product with up
    assert found == T * (2 * (7 * D + 4 * INNER) + 4 * HEADS + 2 * 4)


def test_a_compiled_feed_forward_layer_keeps_no_weights_and_nothing_twice():
    """Longer sequences keep more in proportion: there is no constant part, such as joined weights."""
    once, twice = (block_bytes("attention", True, length, num_heads=HEADS, rope_theta=None) for length in (64, 128))
    assert twice == 2 * once
    assert once <= T * (2 * (6 * D + 2 * INNER) + 4 * HEADS + 2 * 4)


def test_the_operation_keeps_the_tensors_of_the_cuda_kernels(monkeypatch):
    H, J, K, tokens = 2, 4, 16, 2048
    options = {"num_heads": H, "num_mixtures": J, "head_dim": K, "temporal": True}
    whole = block_bytes("swila", length=tokens, **options)
    monkeypatch.setattr(activations, "BACKEND", replace(BACKEND, saved_like=lambda x, options: []))
    without = block_bytes("swila", length=tokens, **options)
    states = tokens // 512 * H * J * K * max(K, 32) * 4  # every 512 tokens, keys padded to 32
    writes = tokens * H * J * K * 2
    mixes = tokens // 16 * H * J * K * 3 * 4  # r and rho every 16 tokens, r in the middle as well
    assert whole - without == states + writes + mixes


def test_compilation_keeps_less_than_autograd():
    """Without fused kernels, which keep little in any case."""
    with use_fused(False):
        eager = block_bytes("attention", False, num_heads=HEADS)
        assert 0.3 * eager < block_bytes("attention", True, num_heads=HEADS) < 0.95 * eager


def test_the_matrix_of_biases_is_kept_only_without_a_kernel_for_it():
    torch_code = block_bytes("fox", length=256, num_heads=HEADS)
    kernel = block_bytes("fox", length=256, num_heads=HEADS, backend="fla")
    assert torch_code - kernel > 2 * HEADS * 256 * 256


def test_kernels_of_flash_linear_attention_are_traced_as_ours():
    assert block_bytes("deltanet", num_heads=HEADS, backend="fla") == block_bytes("deltanet", num_heads=HEADS)


def test_tracing_leaves_backends_and_dtype_as_they_were(monkeypatch):
    block_bytes("deltanet", num_heads=HEADS)
    monkeypatch.setattr(activations, "_eager_bytes", None)
    with pytest.raises(TypeError):
        block_bytes("deltanet", num_heads=HEADS)
    assert registered_backends() == ()
    assert torch.get_default_dtype() == torch.float32


def test_the_estimate_agrees_with_the_peak_measured_on_a_gpu():
    """Of ``swila pretrain`` on one H200, with all activations of a micro-batch of 8 x 4,096 tokens."""
    row = next(row for row in MEASURED["recipes"] if row["recipe"] == "gdn-374m")
    with use_fused(
        False
    ):  # the measurement is older than the fused kernels, and than low-rank logits that are not kept
        planned = plan(benchmarked(row["recipe"], row["length"], row["batch_size"], 1)).memory.total / 1e9
    assert planned == pytest.approx(row["engine"]["memory_gb"], rel=0.05)
    assert planned == pytest.approx(row["planned_gb"], rel=0.01)  # what the docs show


def test_every_measured_peak_is_within_a_tenth_of_its_plan():
    assert len(MEASURED["recipes"]) == 4
    for row in MEASURED["recipes"]:
        assert row["planned_gb"] == pytest.approx(row["engine"]["memory_gb"], rel=0.1)


def sizes():
    """Elements of the root group and of a block of ``model_recipe()``, counted by hand."""
    mixer = 4 * D * D + D * D + 3 * 4 * D + 2 * HEADS * D + 2 * HEADS + D // HEADS  # with gate, convolutions, decay
    return 2 * VOCABULARY * D + D, mixer + 3 * D * INNER + 2 * D


def test_memory_by_hand(untraced):
    root, block = sizes()
    total = root + LAYERS * block
    found = plan(recipe_of(micro_batch=2), 1, "H100")
    assert found.parameters == found.per_rank == total
    assert found.memory.weights == found.memory.gradients == 4 * total
    assert found.memory.optimizer == 8 * total
    assert found.memory.gathered == 2 * total  # one GPU has all weights in bfloat16
    assert found.memory.unsharded_gradients == 2 * (VOCABULARY * D + block)
    assert found.memory.activations == 2 * (LAYERS * KEPT + (LAYERS + 4) * 2 * T * D)
    assert found.memory.loss == 2 * T * VOCABULARY * (4 + 2) + 4 * VOCABULARY * D
    parts = found.as_json()["memory"].values()
    assert found.memory.total == sum(parts)


def test_memory_of_a_rank_by_hand(untraced):
    root, block = sizes()
    found = plan(recipe_of(), 8, "H100")
    rounded_up = LAYERS * (2 * (8 - HEADS) * D + 2 * (8 - HEADS))  # learning rate and decay have a row for each head
    assert found.per_rank == (root + LAYERS * block + rounded_up) / 8
    assert found.memory.weights == 4 * found.per_rank
    assert found.memory.gathered == 2 * (root + 2 * block)  # the block that computes, and the next
    assert found.memory.unsharded_gradients == 2 * (VOCABULARY * D + block) + 4 * block
    assert plan(recipe_of(shard_size=1), 8, "H100").memory.gathered == found.memory.gathered
    full = plan(recipe_of(precision="float32"), 8, "H100")
    assert full.memory.gathered == 4 * (root + 2 * block)
    assert full.memory.loss == 8 * T * VOCABULARY * 4 + 4 * VOCABULARY * D


def test_one_gpu_in_float32_has_no_second_weights(untraced):
    found = plan(recipe_of(precision="float32"), 1, "H100")
    assert (found.memory.gathered, found.memory.unsharded_gradients) == (0, 0)


def test_the_logits_of_a_chunk_are_bounded(untraced):
    wide = model_recipe(vocab_size=32_000)
    few, many = (plan(recipe_of(64, 4096, wide, micro_batch=size), 1, "H200").memory.loss for size in (1, 64))
    chunk = 256 * 2**20 // 4 // 32_000 // 128 * 128
    assert few == many == chunk * 32_000 * 6 + 4 * 32_000 * D


@pytest.mark.parametrize(("compile", "compiled"), [(None, True), (False, False)])
def test_each_kind_of_block_is_traced_once_as_it_will_run(monkeypatch, compile, compiled):
    calls = []

    def kept(config, layer, *how):
        calls.append((config.layer_mixers[layer], *how))
        return {"deltanet": 100, "attention": 1000}[config.layer_mixers[layer]]

    monkeypatch.setattr(memory, "kept_bytes", kept)
    model = model_recipe("deltanet", attention_layers=[3], mixer_options={})
    found = plan(recipe_of(micro_batch=1, model=model, compile=compile))
    assert sorted(calls) == [(name, T, torch.bfloat16, compiled) for name in ("attention", "deltanet")]
    assert found.memory.activations == 3 * 100 + 1000 + (LAYERS + 4) * 2 * T * D


@pytest.mark.parametrize(("which", "kept"), [("none", 4), ("all", 1), (2, 3), (3, 4), (4, 4)])
def test_recomputed_blocks_keep_their_input_and_one_has_activations(untraced, which, kept):
    found = plan(recipe_of(micro_batch=1, activation_checkpointing=which), 1, "H100")
    assert found.memory.activations == kept * KEPT + (LAYERS + 4) * 2 * T * D


def test_memory_grows_with_the_micro_batch_and_shrinks_with_ranks(untraced):
    by_size = [plan(recipe_of(micro_batch=size), 1, "H100").memory.total for size in (1, 2, 8, 64)]
    by_ranks = [plan(recipe_of(micro_batch=1), gpus, "H100").memory.total for gpus in (1, 2, 8, 64)]
    assert by_size == sorted(set(by_size))
    assert by_ranks == sorted(set(by_ranks), reverse=True)


def test_the_largest_micro_batch_fits_and_the_next_does_not(untraced, monkeypatch):
    gpu = GPUS["H100"]
    at = {size: plan(recipe_of(96, micro_batch=size)).memory.total for size in (1, 12, 16, 24)}
    for room, largest in ((at[16], 16), (at[16] - 1, 12), (at[24] - 1, 16), (at[1] - 1, 0), (1e12, 96)):
        tight = gpu._replace(memory=room / (1 - RESERVE) * (1 + 1e-9))
        monkeypatch.setitem(GPUS, "H100", tight)
        found = plan(recipe_of(96, micro_batch=16), 1, "H100")
        assert found.largest_micro_batch == largest
        assert found.fits == (largest >= 16)


def test_the_micro_batch_divides_the_share(untraced):
    found = plan(recipe_of(96, micro_batch=7), 4, "H100")
    assert (found.micro_batch, found.micro_batches) == (6, 4)


def test_communication_by_hand():
    gpu = GPUS["H100"]
    model = Sizes(root=1000, blocks=[800, 800], shapes=[(2600,)])
    one = communication(model, 1, 1, 3, 2, gpu)
    assert (one.total, one.seconds) == (0, 0)
    sharded = communication(model, 4, 1, 3, 2, gpu)
    assert sharded.gather_forward == 3 * 3 / 4 * 2 * 2600
    assert sharded.gather_backward == 3 * 3 / 4 * 2 * 1600
    assert sharded.reduce_scatter == 3 * 3 / 4 * 4 * 2600
    assert sharded.all_reduce == 0
    assert sharded.seconds == pytest.approx(sharded.total / gpu.link / EFFICIENCY)
    hybrid = communication(model, 8, 2, 1, 2, gpu)
    assert hybrid.all_reduce == 2 * 1 / 2 * 4 * 325
    within = hybrid.total - hybrid.all_reduce
    assert hybrid.seconds == pytest.approx((within / gpu.link + hybrid.all_reduce / gpu.network) / EFFICIENCY)
    wide = communication(model, 16, 1, 1, 2, gpu)
    assert wide.seconds == pytest.approx(wide.total / (8 * gpu.network) / EFFICIENCY)


def test_time_is_the_slower_of_computing_and_communication(untraced, monkeypatch):
    fast = plan(recipe_of(), 8, "H100")
    assert fast.step_seconds == fast.compute_seconds > fast.communication.seconds
    assert fast.tokens_per_second == pytest.approx(64 * T / fast.compute_seconds)
    assert fast.gpu_hours == 8 * fast.hours
    assert fast.hours == pytest.approx(1000 * fast.compute_seconds / 3600)
    monkeypatch.setitem(GPUS, "H100", GPUS["H100"]._replace(link=1e6))
    slow = plan(recipe_of(), 8, "H100")
    assert slow.hours == pytest.approx(1000 * slow.communication.seconds / 3600)
    assert slow.hours > fast.hours


def test_errors_name_the_argument(untraced):
    with pytest.raises(ValueError, match=r"gpus must divide data.batch_size = 64, got 48"):
        plan(recipe_of(), 48)
    with pytest.raises(ValueError, match=r"execution.shard_size must divide the 8 GPUs, got 3"):
        plan(recipe_of(shard_size=3), 8)
    with pytest.raises(ValueError, match=r"gpu must be one of .*, got 'abacus'"):
        plan(recipe_of(), 8, "abacus")


@pytest.mark.parametrize(("gpus", "shard_size"), [(64, None), (64, 16), (3, None)])
def test_the_engine_divides_every_parameter(gpus, shard_size):
    recipe = recipe_of(192, shard_size=shard_size)
    found, shards = check_sharding(recipe, gpus), shard_size or gpus
    root, block = sizes()
    assert found.parameters == root + LAYERS * block
    assert found.whole == []
    parameters = list(skeleton(recipe).parameters())
    padded = sum((-p.shape[0] % shards) * p[0].numel() for p in parameters)
    assert found.padding == padded
    assert shards * found.per_rank == found.parameters + padded
    assert Sizes.of(skeleton(recipe)).per_rank(shards) == found.per_rank
    assert not dist.is_initialized()


@pytest.mark.parametrize("gpus", [1, 64])
def test_an_undivided_parameter_is_reported(monkeypatch, gpus):
    if gpus > 1:  # one rank keeps the model whole anyway
        monkeypatch.setattr(sharding, "shard", lambda model, mesh, recipe: None)
    found = check_sharding(recipe_of(), gpus)
    assert len(found.whole) == len(list(skeleton(recipe_of()).parameters()))
    assert found.per_rank == found.parameters


def test_no_process_group_is_left_after_an_error(monkeypatch):
    with pytest.raises(ValueError, match="shard_size must divide"):
        check_sharding(recipe_of(shard_size=3), 64)
    assert not dist.is_initialized()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with pytest.raises(ValueError, match="outside of a process group"):
        check_sharding(recipe_of(), 64)


def shown(found):
    console = Console(file=io.StringIO(), width=120)
    show_plan(found, console)
    return console.file.getvalue()


def test_a_plan_is_shown_and_is_json(untraced):
    found = plan(recipe_of(micro_batch=4, model=model_recipe(vocab_size=None)), 16, "A100")
    assert json.loads(json.dumps(found.as_json()))["memory"]["weights"] == found.memory.weights
    text = shown(found)
    for words in ("made-up on 16 × A100", "1 × 4", "reduce-scatter", "312 TFLOP/s", "300 GB/s", "32,000 tokens"):
        assert words in text
    assert "between copies" not in text
    copies = shown(plan(recipe_of(shard_size=8), 16, "A100"))
    assert "between copies" in copies
    alone = shown(plan(recipe_of(), 1, "RTX 4090"))
    assert "reduce-scatter" not in alone
    assert "GB/s" not in alone


def test_a_plan_that_does_not_fit_says_so(untraced, monkeypatch):
    monkeypatch.setitem(GPUS, "H100", GPUS["H100"]._replace(memory=1e6))
    found = plan(recipe_of())
    assert not found.fits
    assert "none fits" in shown(found)
