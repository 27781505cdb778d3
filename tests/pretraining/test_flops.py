"""FLOPs per token against torch's counter and hand counts; GPUs by name; throughput and GPU hours."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from swila.layers import Attention, GatedDeltaNet, MixtureOfMemories, SequenceMixer, SwiLA
from swila.models.language.configuration import SwiLAConfig
from swila.models.language.modeling import SwiLAForCausalLM
from swila.models.language.presets import get_preset
from swila.pretraining.cost import HIGHEST, assumed_mfu, gpu_hours, recomputed, tokens_per_second
from swila.pretraining.flops import flops_per_token, mfu, peak_flops, recipe_flops
from swila.pretraining.gpus import GPUS, find_gpu, get_gpu
from swila.pretraining.recipe import DataRecipe, ExecutionRecipe, ModelRecipe, Recipe, ScheduleRecipe

T = 32


def recipe_of(preset, length=4096, **execution):
    return Recipe(
        preset,
        "",
        ModelRecipe(**get_preset(preset)),
        ScheduleRecipe(steps=100),
        DataRecipe(length, 8),
        execution=ExecutionRecipe(**execution),
    )


def small_model(mixer, **changes):
    sizes = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 80}
    return SwiLAForCausalLM(SwiLAConfig(**{**sizes, "mixer": mixer, **changes}))


@pytest.mark.parametrize(
    ("mixer", "options"),
    [
        ("swila", {"num_heads": 2, "temporal": True, "router_projection": "low-rank:16", "decay": "key"}),
        ("kda", {"num_heads": 2}),
        ("mom", {"num_heads": 2, "shared_memory": True}),
        ("attention", {"num_heads": 4, "num_kv_heads": 2, "use_output_gate": True}),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_linear_parts_are_the_matrix_products_that_torch_counts(mixer, options, tied):
    model = small_model(mixer, mixer_options=options, tie_word_embeddings=tied)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, T, dtype=torch.long))
    counts = counter.get_flop_counts()["Global"]
    products = counts[torch.ops.aten.mm] + counts.get(torch.ops.aten.addmm, 0)
    assert flops_per_token(model, T).linear * T == products


def test_attention_counts_half_of_the_full_square():
    attention = Attention(64, num_heads=4, head_dim=24)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        attention(torch.randn(1, T, 64))
    square = counter.get_flop_counts()["Global"][torch.ops.aten.bmm]
    assert square == 4 * T * T * 4 * 24
    assert attention.mixing_flops(T) * T == square / 2


@pytest.mark.parametrize(
    ("layer", "recurrence", "convolution"),
    [
        # q, k and v are 2 heads of 16; each state is 16 x 16
        (lambda: SwiLA(64, 2, num_mixtures=4, head_dim=16), 6 * 2 * 4 * 16 * 16, 2 * 4 * 3 * 32),
        (lambda: SwiLA(64, 2, num_mixtures=4, head_dim=16, decay="value"), 7 * 2 * 4 * 16 * 16, 2 * 4 * 3 * 32),
        (lambda: GatedDeltaNet(64, 2, head_dim=16, conv_size=3), 7 * 2 * 16 * 16, 2 * 3 * 3 * 32),
        (lambda: GatedDeltaNet(64, 2, head_dim=16, conv_on="input"), 7 * 2 * 16 * 16, 2 * 4 * 64),
        # 3 memories and a shared one: all are computed for every token, with keys and values of their own
        (lambda: MixtureOfMemories(64, 2, 3, shared_memory=True, head_dim=16), 6 * 4 * 2 * 256, 2 * 4 * (32 + 8 * 32)),
    ],
)
def test_recurrences_and_convolutions_by_hand(layer, recurrence, convolution):
    flops = flops_per_token(layer(), 1000)
    assert flops.recurrence == recurrence
    assert flops.convolution == convolution
    assert flops.attention == 0


def test_a_hybrid_has_both_and_training_takes_three_times_the_forward_pass():
    model = small_model(["swila", "attention"], mixer_options={"swila": {"num_heads": 2}, "attention": {}})
    flops = flops_per_token(model, 100)
    assert flops.attention == 2 * 100 * 64
    assert flops.recurrence == 6 * 2 * 4 * 16 * 16
    assert flops.forward == flops.linear + flops.recurrence + flops.attention + flops.convolution
    assert flops.training == 3 * flops.forward


def test_a_layer_of_a_user_is_counted_by_its_linear_modules_and_its_own_count():
    class Mean(SequenceMixer):
        def __init__(self):
            super().__init__(8)
            self.proj = torch.nn.Linear(8, 8)

        def state_size(self, length=1):
            return 8

    assert flops_per_token(Mean(), 10) == (128, 0, 0, 0)
    Mean.mixing_flops = lambda self, length: 8.0
    assert flops_per_token(Mean(), 10) == (128, 8, 0, 0)


def test_mfu_and_peaks():
    assert mfu(1000.0, 3e9, 2, 6e12) == 0.25
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-40GB") == 312e12
    assert peak_flops("Tesla K80") is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h200", "H200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("H1", None),
    ],
)
def test_gpus_are_found_by_the_name_torch_gives(text, name):
    assert find_gpu(text) == (None if name is None else GPUS[name])


def test_an_unknown_gpu_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match=r"gpu must be one of .*H100.*RTX 4090.*, got 'abacus'"):
        get_gpu("abacus")


MEASURED = json.loads((Path(__file__).parents[2] / "results" / "pretraining-cuda.json").read_text())["recipes"]


@pytest.mark.parametrize(
    ("preset", "measured"),
    [
        *((row["recipe"], row["engine"]["tokens_per_second"] / 1e3) for row in MEASURED),
        ("swila-1.3b", 55.6),
        ("temporal-swila-1.3b", 53.1),
        ("transformer-1.3b", 45.7),
    ],
)
def test_the_assumed_utilisations_give_the_measured_throughput(preset, measured):
    assert tokens_per_second(recipe_of(preset), "H200") == pytest.approx(1e3 * measured, rel=5e-3)


def test_utilisation_between_and_beyond_the_measured_widths():
    recipe = recipe_of("swila-374m")
    widths = [256, 512, 1024, 1536, 2048, 4096]
    found = [assumed_mfu(replace(recipe, model=replace(recipe.model, hidden_size=width))) for width in widths]
    assert found == sorted(found)
    assert found[2] == pytest.approx(0.267)
    assert found[4] == pytest.approx(0.444)
    assert found[1] == pytest.approx(1 / (1 / 0.444 + 3 * (1 / 0.267 - 1 / 0.444)))
    assert found[-1] == HIGHEST


def test_a_hybrid_is_between_its_layers():
    low, high = sorted(assumed_mfu(recipe_of(name)) for name in ("transformer-1.3b", "gdn-1.3b"))
    assert low < assumed_mfu(recipe_of("hybrid-gdn-1.3b")) < high


def test_gpu_hours_grow_with_tokens_and_shrink_with_the_peak():
    recipe = recipe_of("deltanet-374m")
    longer = replace(recipe, schedule=ScheduleRecipe(steps=300))
    assert gpu_hours(longer) == pytest.approx(3 * gpu_hours(recipe))
    assert gpu_hours(recipe, "A100") == pytest.approx(gpu_hours(recipe, "H100") * 989 / 312)
    seconds = recipe.tokens * recipe_flops(recipe).training / (0.201 * 989e12)
    assert gpu_hours(recipe) == pytest.approx(seconds / 3600)
    assert tokens_per_second(recipe, gpus=4) == pytest.approx(4 * tokens_per_second(recipe))
    assert tokens_per_second(replace(recipe, precision="float32")) < tokens_per_second(recipe) / 10


@pytest.mark.parametrize(
    ("which", "blocks"), [("none", []), ("all", range(24)), (2, range(1, 24, 2)), (5, [4, 9, 14, 19])]
)
def test_recomputed_blocks_cost_their_forward_pass_again(which, blocks):
    recipe = recipe_of("gdn-374m", activation_checkpointing=which)
    assert [i for i in range(24) if recipe.execution.recomputes(i)] == list(blocks)
    assert recomputed(recipe) == len(blocks) / 24
    plain = recipe_of("gdn-374m")
    assert tokens_per_second(plain) / tokens_per_second(recipe) == pytest.approx(1 + len(blocks) / 72)
