"""Presets are the paper's models, and what cannot be is refused in words that name the field and the fix."""

import json

import pytest
import torch

from swila import SwiLAConfig, SwiLAForCausalLM, SwiLAModel
from swila.layers import MIXERS, make_mixer, registry
from swila.models.language.listing import describe
from swila.models.language.presets import PAPER, SIZES, preset_names

pytestmark = pytest.mark.unpoisoned  # a patched torch.empty does not know the meta device


def on_meta(name):
    with torch.device("meta"):
        return SwiLAForCausalLM(SwiLAConfig.preset(name))


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_thirteen(name):
    model = on_meta(f"{name}-374m")
    config = model.config
    assert abs(model.num_parameters() / 374e6 - 1) < 0.003
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (24, 1024, 32000)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    attends = [i for i, mixer in enumerate(config.layer_mixers) if mixer in ("attention", "fox")]
    expected = {"transformer": list(range(24)), "fox": list(range(24))}
    if name.startswith("hybrid"):
        expected[name] = [3, 7, 11, 15, 19, 23]
    assert attends == expected.get(name, [])
    for i, layer in enumerate(model.model.layers):
        if i not in attends:
            assert layer.mixer.state_size(5) == 131072
        else:
            assert layer.mixer.num_heads * layer.mixer.head_dim == 1024
            assert layer.mixer.head_dim == (64 if name == "transformer" else 128)


@pytest.mark.parametrize(("size", "parameters"), [("1.3b", 1364.3e6), ("115m", 115e6), ("small", 64.24e6)])
def test_models_of_a_size_are_equal(size, parameters):
    states = set()
    for name in SIZES[size].widths:
        model = on_meta(f"{name}-{size}")
        assert abs(model.num_parameters() / parameters - 1) < 0.003, name
        states |= {layer.mixer.state_size(0) for layer in model.model.layers} - {0}
    assert len(states) == 1
    assert len(SIZES["1.3b"].widths) == 6


@pytest.mark.parametrize("name", PAPER)
def test_widths_at_small(name):
    """The multiple of 16 that comes closest to the Transformer; 65,536 scalars of state a layer; heads of 128."""
    parameters, wanted = (describe(f"{each}-small").parameters for each in (name, "transformer"))
    assert wanted == 31_470_080 + 2 * 32000 * 512
    assert SIZES["small"].widths[name] % 16 == 0
    assert abs(parameters - wanted) <= 16 * 3 * 512 * 12 / 2
    mixers = [layer.mixer for layer in on_meta(f"{name}-small").model.layers]
    assert len(mixers) == 12
    if name not in ("transformer", "fox"):
        attends = [3, 7, 11] if name.startswith("hybrid") else []
        assert [i for i, mixer in enumerate(mixers) if mixer.state_size(0) == 0] == attends
        assert {mixers[i].head_dim for i in attends} <= {128}
        assert mixers[0].state_size(0) == 65_536


def test_presets_make_models_and_survive_a_file(tmp_path):
    for name in preset_names():
        config = SwiLAConfig.preset(name)
        config.save_pretrained(tmp_path)
        assert SwiLAConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
        assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "swila"


def test_describe():
    found = describe("hybrid-temporal-swila-374m")
    assert found.state_bytes == 18 * 131072 * 4
    assert found.cache_bytes == 6 * 2 * 1024 * 2


def test_changes_of_a_preset():
    config = SwiLAConfig.preset("temporal-swila-tiny", vocab_size=100, mixer_options={"num_mixtures": 2})
    assert config.vocab_size == 100
    assert config.options_of("swila")["num_mixtures"] == 2
    assert config.options_of("swila")["temporal"]
    config = SwiLAConfig.preset("hybrid-gdn-tiny", mixer_options={"attention": {"qk_norm": True}})
    assert config.options_of("attention") == {"num_heads": 2, "qk_norm": True}
    assert config.options_of("gated-deltanet")["num_heads"] == 2
    assert SwiLAConfig.preset("hybrid-gdn-374m", num_hidden_layers=8).attention_layers == [3, 7]
    mixed = SwiLAConfig.preset(
        "hybrid-temporal-swila-tiny", mixer_options={"num_mixtures": 2, "attention": {"qk_norm": True}}
    )
    assert mixed.options_of("swila")["num_mixtures"] == 2
    assert mixed.options_of("attention")["qk_norm"]


def test_options_of_a_single_mixer_may_be_flat():
    flat = SwiLAConfig(hidden_size=32, mixer="swila", mixer_options={"num_heads": 2, "temporal": True})
    named = SwiLAConfig(hidden_size=32, mixer="swila", mixer_options={"swila": {"num_heads": 2, "temporal": True}})
    assert flat.options_of("swila") == named.options_of("swila")
    hybrid = SwiLAConfig(hidden_size=32, mixer_options={"num_heads": 2}, attention_layers=[1], num_hidden_layers=2)
    assert hybrid.options_of("swila") == {"num_heads": 2}
    assert hybrid.options_of("attention") == {}


def test_a_mixer_of_ones_own(monkeypatch):
    monkeypatch.setattr(registry, "MIXERS", MIXERS)
    monkeypatch.setitem(MIXERS, "mine", type("Mine", (MIXERS["deltanet"],), {}))
    model = SwiLAModel(SwiLAConfig(vocab_size=9, hidden_size=16, num_hidden_layers=2, mixer=["mine", "attention"]))
    assert type(model.layers[0].mixer).__name__ == "Mine"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mixer": "mamba"}, "mixer must be one of swila, deltanet, .*, got 'mamba'"),
        ({"mixer": ["swila", "mamba"]}, r"mixer\[1\] must be one of swila, .*, got 'mamba'"),
        ({"mixer": []}, "mixer must be a name or a list of names"),
        (
            {"mixer": ["swila"] * 5},
            "mixer must name each of num_hidden_layers = 24 layers, or be a pattern .* got 5 names",
        ),
        ({"attention_layers": [3, 24]}, r"attention_layers must be between 0 and 23 .* layer 4 is 3\), got \[24\]"),
        ({"attention_layers": [-1]}, r"attention_layers must be between 0 and 23"),
        ({"attention_layers": [3, 3]}, "attention_layers must name each layer once"),
        (
            {"mixer": "attention", "mixer_options": {"num_heads": 7}},
            "mixer_options of 'attention': num_heads must divide",
        ),
        ({"mixer_options": {"num_heads": 7}}, "mixer_options of 'swila': expand_k must make .* multiple of num_heads"),
        ({"mixer_options": {"swila": {"num_hedas": 7}}}, "mixer_options of 'swila': 'num_hedas' is not an option"),
        (
            {"mixer_options": {"kda": {}}},
            "mixer_options has options of 'kda', which no layer uses; the layers are swila",
        ),
        ({"mixer_options": {"swila": 3}}, r"mixer_options\['swila'\] must be a dict"),
        (
            {"mixer": ["swila", "attention"], "mixer_options": {"num_heads": 4}},
            r"mixer_options must be \{name: options\} where mixer is a list",
        ),
        ({"num_heads": 4}, "'num_heads' is an option of the mixer .*: put it into mixer_options"),
        ({"num_attention_heads": 4}, "'num_attention_heads' is not a field .*; use num_heads in mixer_options"),
        ({"d_model": 4}, "'d_model' is not a field of SwiLAConfig; use hidden_size"),
        ({"attention_layers": 3}, "attention_layers must be a list of layer indices, got 3"),
        ({"mixer_options": "abc"}, "mixer_options must be a dict of options, got 'abc'"),
        ({"mixer_options": {"layer_idx": 0}}, "mixer_options of 'swila': layer_idx is set by the model"),
        ({"mixer_options": {"backend": "fast"}}, "mixer_options of 'swila': backend must be 'auto', 'fla' or one of"),
        ({"loss_chunk_size": 0}, "loss_chunk_size must be at least 1, or None, got 0"),
        ({"norm_eps": -1.0}, "norm_eps must be above 0"),
        ({"initializer_range": -1.0}, "initializer_range must be 0 or more"),
        ({"hiden_size": 4}, "'hiden_size' is not a field of SwiLAConfig; did you mean 'hidden_size'?"),
        ({"hidden_size": 0}, "hidden_size must be an integer of at least 1, got 0"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers must be an integer of at least 1, got 2.5"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
    ],
)
def test_bad_configurations(fields, message):
    with pytest.raises(ValueError, match=message):
        SwiLAConfig(**fields)


def test_fields_set_later_are_checked_by_the_model():
    config = SwiLAConfig(hidden_size=32, num_hidden_layers=2)
    config.attention_layers = [2]
    with pytest.raises(ValueError, match="attention_layers must be between 0 and 1"):
        SwiLAModel(config)


def test_unknown_preset():
    for name in ("swila", "swila-7b", "kda-1.3b", "temporal_swila_374m"):
        with pytest.raises(ValueError, match=r"preset must be ARCHITECTURE-SIZE, .* Available: tiny: transformer, fox"):
            SwiLAConfig.preset(name)


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        ("gdn-374m", 1.28e-4),
        ("deltanet-tiny", 6.4e-5),
        ("kda-374m", 1.28e-4),
        ("temporal-swila-374m", 6.4e-5),
        ("swila-16-115m", 3.2e-5),
        ("dn-mom-374m", 1.28e-4),
        ("gdn-mom-374m", 6.4e-5),
    ],
)
def test_output_norms_of_presets_have_the_epsilon_of_scaled_queries(name, epsilon):
    config = SwiLAConfig.preset(name)
    assert config.options_of(config.layer_mixers[0])["norm_eps"] == epsilon
    with torch.device("meta"):
        mixer = make_mixer(config.layer_mixers[0], config.hidden_size, **config.options_of(config.layer_mixers[0]))
    assert mixer.o_norm.eps == epsilon
