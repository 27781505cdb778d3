"""Initial weights: each module from a seed of its own, whole or in parts, and every value written."""

import math

import pytest
import torch
import torch.distributed as dist
from small_runs import copy_of, same_bits, small
from torch import nn
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

from swila import SwiLAConfig, SwiLAForCausalLM
from swila.layers import MIXERS, SequenceMixer
from swila.layers.decay import DecayGate
from swila.layers.short_conv import ShortConvolution
from swila.pretraining.initialization import initialize, make_on_meta, seed_of
from swila.pretraining.parallel import make_mesh, shard

CPU = torch.device("cpu")
SWILA = {"num_heads": 2, "num_mixtures": 2, "temporal": True, "temporal_bias": -2.0, "decay": "key"}


def config_of(**changes):
    given = {"mixer": "swila", "mixer_options": {**SWILA, "conv_bias": True}, **changes}
    return SwiLAConfig(50, 32, 2, 48, **given)


def initialized(config, seed=0):
    model = make_on_meta(config)
    initialize(model, seed, CPU)
    return model


def values(config, seed=0):
    return copy_of(initialized(config, seed).named_parameters())


def test_weights_are_those_of_a_model_in_memory_with_a_seed_for_each_module():
    config = config_of()
    model = SwiLAForCausalLM(config)
    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)):
            torch.manual_seed(seed_of(7, "weights", name))
            model._init_weights(module)
    assert same_bits(values(config, 7), copy_of(model.named_parameters()))


@pytest.mark.parametrize("name", ["transformer", "fox", "gdn", "kda", "gdn-mom", "gated-temporal-swila"])
def test_every_weight_is_written(name):
    changes = {"vocab_size": 50, "num_hidden_layers": 1, "intermediate_size": 32}
    model = initialized(SwiLAConfig.preset(f"{name}-tiny", **changes))
    for parameter, x in model.named_parameters():
        assert x.isfinite().all(), parameter
        assert x.dtype == torch.float32
        assert x.device == CPU
        assert x.requires_grad
    assert not list(model.buffers())


def test_modules_and_seeds_differ():
    first, again, other = values(config_of()), values(config_of()), values(config_of(), 1)
    assert same_bits(first, again)
    random = [name for name, x in first.items() if x.unique().numel() > 1]
    assert all(not torch.equal(first[name], other[name]) for name in random)
    alike = {}
    for name in random:
        alike.setdefault(first[name].shape, []).append(first[name])
    for group in alike.values():
        assert all(not torch.equal(a, b) for i, a in enumerate(group) for b in group[:i])


def test_the_random_generator_of_the_caller_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    initialized(config_of())
    assert torch.equal(torch.rand(3), expected)


def test_special_values_survive():
    model = initialized(config_of(conv_initializer_range=None))
    for block in model.model.layers:
        assert (block.mixer.key_gate_bias == -2).all()
        assert (block.mixer.query_gate_bias == -2).all()
        for norm in (block.mixer_norm, block.mlp_norm):
            assert (norm.weight == 1).all()
    gates = [m for m in model.modules() if isinstance(m, DecayGate)]
    assert len(gates) == 2
    for gate in gates:
        assert ((gate.A_log.exp() >= 1 - 1e-5) & (gate.A_log.exp() <= 16 + 1e-4)).all()
        steps = F.softplus(gate.dt_bias)
        assert ((steps > 0.00099) & (steps < 0.1001)).all()
    convolutions = [m for m in model.modules() if isinstance(m, ShortConvolution)]
    assert convolutions
    for convolution in convolutions:
        assert 0.3 < convolution.weight.abs().max() <= 0.5, "uniform up to 1 / sqrt(4)"
        assert (convolution.bias == 0).all()


def test_standard_deviations_are_those_of_the_configuration():
    config = config_of(
        initializer_range=0.1,
        embedding_initializer_range=0.7,
        conv_initializer_range=0.3,
        rescale_residual=True,
    )
    model = initialized(config)
    for name, module in model.named_modules():
        expected = None
        if isinstance(module, nn.Embedding):
            expected = 0.7
        elif isinstance(module, ShortConvolution):
            expected = 0.3
        elif isinstance(module, nn.Linear):
            expected = 0.1 / math.sqrt(4) if name.endswith(("o_proj", "down")) else 0.1
        if expected is not None:
            n = module.weight.numel()
            assert module.weight.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * n)), name


def test_a_tied_head_shares_the_embedding_and_its_standard_deviation():
    model = initialized(config_of(tie_word_embeddings=True, embedding_initializer_range=0.7, initializer_range=0.01))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.std().item() == pytest.approx(0.7, rel=0.1)
    untied = values(config_of(embedding_initializer_range=0.7, initializer_range=0.01))
    assert torch.equal(model.lm_head.weight, untied["model.embed_tokens.weight"])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("rank", "ranks"), [(1, 3), (4, 5), (0, 7)])  # torch caches the rank of a mesh by its size
def test_a_rank_has_its_part_of_the_same_weights(rank, ranks, tied):
    recipe = small(f"model.tie_word_embeddings={tied}", mixer="swila", decay="key")
    config = recipe.model.config(16)
    whole = values(config, 2)
    model = make_on_meta(config)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        shard(model, make_mesh(ranks, recipe.execution, CPU), recipe)
        initialize(model, 2, CPU)
        parts = {name: x.to_local() for name, x in model.named_parameters()}
    finally:
        dist.destroy_process_group()
    assert parts.keys() == whole.keys()
    for name, part in parts.items():
        chunks = whole[name].chunk(ranks)
        assert torch.equal(part, chunks[rank] if rank < len(chunks) else whole[name][:0]), name


def test_a_module_that_cannot_draw_its_weights_is_an_error(monkeypatch):
    class Scaled(SequenceMixer):
        def __init__(self, hidden_size, layer_idx=None):
            super().__init__(hidden_size, layer_idx=layer_idx)
            self.scale = nn.Parameter(torch.ones(hidden_size))

        def mix(self, x, past, context):
            return x * self.scale, None

        def state_size(self, length=1):
            return 0

    monkeypatch.setitem(MIXERS, "scaled", Scaled)
    config = config_of(mixer="scaled", mixer_options={})
    with pytest.raises(ValueError, match=r"model\.layers\.0\.mixer \(Scaled\) must have reset_parameters\(\)"):
        initialized(config)
    Scaled.reset_parameters = lambda self: nn.init.constant_(self.scale, 3.0)
    assert (initialized(config).model.layers[1].mixer.scale == 3).all()


def test_seeds_differ_by_purpose_and_are_the_same_everywhere():
    assert seed_of(0, "weights", "lm_head") == 7947584362314244224
    assert len({seed_of(*parts) for parts in ((0, "a", 1), (0, "a", 2), (1, "a", 1), (0, "b", 1), (0, "a1"))}) == 5
    assert 0 <= seed_of(3, "update", 5) < 2**63
