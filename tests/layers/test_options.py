"""Options and arguments: accepted, documented, and refused with an error that names them."""

import inspect
import re

import pytest
import torch
from mixers import build

from swila.layers import MIXERS as CLASSES
from swila.layers import make_mixer, register_mixer, registry
from swila.layers.options import AttentionOptions, RecurrentOptions, SharedOptions
from swila.ops import validation


def test_register_mixer(monkeypatch):
    monkeypatch.setattr(registry, "MIXERS", dict(CLASSES))

    class Mine(CLASSES["deltanet"]):
        pass

    register_mixer("mine", Mine)
    assert type(make_mixer("mine", 16)) is Mine
    with pytest.raises(ValueError, match="mixer must be a subclass of SequenceMixer, got"):
        register_mixer("theirs", torch.nn.Linear)
    short = type("Short", (Mine,), {"state_size": lambda self: 3})
    with pytest.raises(ValueError, match=r"state_size must take \(self, length\), got \(self\)"):
        register_mixer("short", short)
    with pytest.raises(ValueError, match="name must be new, got 'kda', which is KimiDeltaAttention"):
        register_mixer("kda", Mine)


@pytest.mark.parametrize("name", CLASSES)
def test_unknown_arguments_are_errors(name):
    told = f"^{CLASSES[name].__name__} has no option 'use_shot_conv'; it has hidden_size, num_heads, .*norm_eps"
    with pytest.raises(TypeError, match=told):  # of the layer itself, not of the base class that it forwards to
        CLASSES[name](16, use_shot_conv=True)
    with pytest.raises(ValueError, match=f"'use_shot_conv' is not an option of the mixer '{name}'; it has num_heads"):
        make_mixer(name, 16, use_shot_conv=True)
    with pytest.raises(TypeError, match="attn_mask"):
        make_mixer(name, 16)(torch.zeros(1, 2, 16), attn_mask=None)


@pytest.mark.parametrize("name", CLASSES)
def test_options_of_the_wrong_kind_are_errors(name):
    """By what the signature says: flags, counts and weights of every layer, those it adds later too."""
    needed = {"temporal_noise": {"temporal": True}, "temporal_bias": {"temporal": True}}
    for parameter in inspect.signature(CLASSES[name]).parameters.values():
        kind = str(parameter.annotation)
        bad = ["yes", 1] if "bool" in kind else [2.5, 0, True, "2"] if kind.startswith("int") else []
        if parameter.name.startswith("balance") or parameter.name == "norm_eps":
            bad = [-1, float("nan"), float("inf"), "1"]
        if parameter.name in ("hidden_size", "layer_idx"):
            continue
        for value in bad:
            with pytest.raises(ValueError, match=f"{parameter.name} must be .*got"):
                make_mixer(name, 16, **{parameter.name: value, **needed.get(parameter.name, {})})


@pytest.mark.parametrize("name", CLASSES)
def test_docstring_names_every_argument(name):
    document = f"{inspect.getdoc(CLASSES[name])}\n{inspect.getdoc(CLASSES[name].__init__)}"
    for parameter in inspect.signature(CLASSES[name]).parameters:
        assert f"    {parameter}: " in document


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"hidden_states": torch.zeros(2, 3, 5)},
            r"hidden_states must be \[B, T, hidden_size\] with hidden_size 16, got",
        ),
        (
            {"hidden_states": torch.zeros(0, 3, 16)},
            r"hidden_states must have at least one row and one token, got shape \[0,",
        ),
        (
            {"hidden_states": torch.zeros(2, 0, 16)},
            r"hidden_states must have at least one row and one token, got shape \[2,",
        ),
        ({"hidden_states": [[0.0]]}, "hidden_states must be a torch.Tensor, got list"),
        ({"attention_mask": [[1, 1, 1]] * 2}, r"attention_mask must be a torch.Tensor \[B, T\], got list"),
        ({"attention_mask": torch.ones(2, 2)}, r"attention_mask must be \[B, T\] = \[2, 3\]"),
        ({"attention_mask": torch.ones(2, 1, 3, 3)}, r"got shape \[2, 1, 3, 3\]"),
        ({"cu_seqlens": torch.tensor([0, 3])}, "hidden_states must have batch size 1 with cu_seqlens, got 2"),
        (
            {
                "hidden_states": torch.zeros(1, 3, 16),
                "cu_seqlens": torch.tensor([0, 3]),
                "attention_mask": torch.ones(1, 3),
            },
            "attention_mask must be None with cu_seqlens",
        ),
        *(
            (
                {"hidden_states": torch.zeros(1, 3, 16), "cu_seqlens": torch.tensor(bounds)},
                rf"cu_seqlens must {words}, got \[{', '.join(map(str, bounds))}\]",
            )
            for bounds, words in (
                ([0, 2], "start at 0 and end at T = 3"),
                ([0, 2, 4], "start at 0 and end at T = 3"),
                ([0, 2, 1, 3], r"increase strictly \(no empty sequence\)"),
                ([0, 2, 2, 3], r"increase strictly \(no empty sequence\)"),
            )
        ),
        (
            {"hidden_states": torch.zeros(1, 3, 16), "cu_seqlens": torch.tensor([0.0, 3])},
            "cu_seqlens must be int32 or int64",
        ),
        (
            {"attention_mask": torch.tensor([[0.0, 0, 0], [-1e9, 0, 0]])},
            "attention_mask must be 1 for a token and 0 for",
        ),
        ({"hidden_states": torch.zeros(1, 3, 16), "cu_seqlens": [0, 3]}, "cu_seqlens must be a torch.Tensor, got list"),
        ({"output_attentions": True}, "output_attentions must be False"),
        ({"use_cache": True, "attention_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])}, "at least one token"),
    ],
)
@pytest.mark.parametrize("name", ["deltanet", "attention"])
def test_mistakes_in_a_call(name, options, message, monkeypatch):
    monkeypatch.setattr(validation, "_value_checks", "always")
    here = {k: v.to(torch.get_default_device()) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    with pytest.raises(ValueError, match=message):
        build(name).float()(**({"hidden_states": torch.zeros(2, 3, 16)} | here))


@pytest.mark.parametrize("group", [SharedOptions, RecurrentOptions, AttentionOptions])
def test_shared_options_are_documented_with_their_defaults(group):
    """In the group's docstring and, through the decorator, under ``__init__`` of each layer that takes it."""
    layers = {SharedOptions: CLASSES, RecurrentOptions: ["swila", "deltanet", "mom"], AttentionOptions: ["fox"]}[group]
    own = [
        name for name in group.__annotations__ if group is SharedOptions or name not in SharedOptions.__annotations__
    ]
    for layer in layers:
        parameters = inspect.signature(CLASSES[layer]).parameters
        for name in own:
            line = re.search(rf"^    {name}: ((?:.|\n     )*)", inspect.getdoc(group), re.M)[1]
            default = parameters[name].default
            said = re.search(r"Default: (.*?)\.?$", " ".join(line.split()))[1].strip("`").replace('"', "'")
            assert (default is None) == ("None" in str(group.__annotations__[name]))
            assert default is None or said in (repr(default), "1e-5" if default == 1e-5 else None)
            if layer != "attention":
                assert f"    {name}: " in inspect.getdoc(CLASSES[layer].__init__)


def test_shared_options_reach_the_layer():
    layer = CLASSES["swila"](
        32, num_heads=2, conv_size=2, conv_bias=True, norm_eps=1e-3, layer_idx=3, backend="reference"
    )
    assert layer.q_conv1d.width == 2
    assert layer.v_conv1d.bias is not None
    assert (layer.o_norm.eps, layer.layer_idx, layer.backend) == (1e-3, 3, "reference")
    fox = CLASSES["fox"](
        32, num_heads=4, num_kv_heads=2, qk_norm=True, norm_eps=1e-3, conv_on="input", use_short_conv=True
    )
    assert (fox.num_kv_heads, fox.q_norm.eps, fox.convolves, fox.rope_theta) == (2, 1e-3, "input", None)
