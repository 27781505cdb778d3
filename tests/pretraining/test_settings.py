"""Fields of a recipe are changed by name, each value by the type of its field, and survive JSON and print."""

import copy
import json
from dataclasses import asdict

import pytest

from swila.pretraining.recipes import get_recipe, recipe_names
from swila.pretraining.settings import change, describe, from_json, setting_names, to_json

pytestmark = pytest.mark.unpoisoned  # a patched torch.empty does not know the meta device


def value(recipe, name):
    found = asdict(recipe)
    for part in name.split("."):
        found = found[part]
    return found


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("optimizer.lr=3e-4", 3e-4),
        ("optimizer.lr=1", 1.0),
        ("optimizer.lr = 0.01", 0.01),
        ("optimizer.clip=none", None),
        ("optimizer.clip=0.5", 0.5),
        ("optimizer.betas=0.8,0.9", (0.8, 0.9)),
        ("optimizer.betas=[0.8, 0.9]", (0.8, 0.9)),
        ("optimizer.betas=(0.8, 0)", (0.8, 0.0)),
        ("schedule.steps=28_610", 28_610),
        ("schedule.schedule=constant", "constant"),
        ("data.packing=documents", "documents"),
        ("seed=3", 3),
        ("precision=bfloat16", "bfloat16"),
        ("name=mine=yours", "mine=yours"),
        ("execution.shard_size=none", None),
        ("execution.shard_size=8", 8),
        ("execution.compile=True", True),
        ("execution.compile=off", False),
        ("execution.compile=null", None),
        ("execution.activation_checkpointing=none", "none"),
        ("execution.activation_checkpointing=all", "all"),
        ("execution.activation_checkpointing=2", 2),
        ("checkpoints.asynchronous=no", False),
        ("logging.wandb=none", None),
        ("logging.wandb=my project", "my project"),
        ("model.vocab_size=100", 100),
        ("model.vocab_size=none", None),
        ("model.attention_layers=[1, 3]", [1, 3]),
        ("model.attention_layers=1,3", [1, 3]),
        ("model.attention_layers=[]", []),
        ("model.mixer=swila", "swila"),
        ("model.mixer=[swila,attention]", ["swila", "attention"]),
        ('model.mixer=["swila", "attention"]', ["swila", "attention"]),
        ("model.mixer_options.swila.num_heads=4", 4),
        ("model.mixer_options.swila.balance_marginal=0", 0.0),
        ("model.mixer_options.swila.temporal=false", False),
        ("model.mixer_options.swila.decay=key", "key"),
        ("model.mixer_options.swila.head_dim=none", None),
        ("model.mixer_options.swila.conv_size=2", 2),
        ('model.mixer_options={"swila": {"num_heads": 2}}', {"swila": {"num_heads": 2}}),
    ],
)
def test_values(setting, expected):
    recipe = get_recipe("temporal-swila-tiny")
    if setting.startswith("model.attention"):
        recipe = change(recipe, ["model.num_hidden_layers=4"])
    name = setting.partition("=")[0].strip()
    before, untouched = copy.deepcopy(recipe), asdict(recipe)
    changed = change(recipe, [setting])
    found = value(changed, name)
    assert found == expected
    assert type(found) is type(expected)
    assert recipe == before, "the recipe is not modified"
    changed_back = asdict(changed)
    inner, wanted = changed_back, untouched
    for part in name.split(".")[:-1]:
        inner, wanted = inner[part], wanted[part]
    inner.pop(name.split(".")[-1])
    wanted.pop(name.split(".")[-1], None)
    assert changed_back == untouched, "no other field changes"


def test_settings_apply_in_turn():
    recipe = change(get_recipe("swila-tiny"), ["seed=1", "schedule.steps=40", "seed=2"])
    assert (recipe.seed, recipe.schedule.steps) == (2, 40)
    assert change(recipe, []) == recipe
    other = change(recipe, ["model.mixer=gated-deltanet", "model.mixer_options={}"])  # valid only together
    assert other.model.mixer == "gated-deltanet"
    hybrid = change(recipe, ["model.attention_layers=[3]", "model.mixer_options.attention.num_heads=2"])
    assert hybrid.model.mixer_options["attention"] == {"num_heads": 2}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.lr", "set must be NAME=VALUE, such as optimizer.lr=3e-4, got 'optimizer.lr'"),
        ("optimizer.lr=", "set must be NAME=VALUE"),
        ("=3", "set must be NAME=VALUE"),
        ("optimizer.rl=3", "'optimizer.rl' is not .* did you mean 'optimizer.lr'. there are optimizer.lr, .*clip$"),
        ("optimiser.lr=3", "'optimiser.lr' is not a field .* there are name, summary, model, .* stability$"),
        ("optimizer=3", "optimizer is a group of fields; change one of optimizer.lr, "),
        ("seed.x=3", "seed has no fields of its own, got 'seed.x'"),
        ("optimizer.lr=fast", "optimizer.lr must be a finite number, got 'fast'"),
        ("optimizer.lr=nan", "optimizer.lr must be a finite number, got 'nan'"),
        ("optimizer.eps=inf", "optimizer.eps must be a finite number, got 'inf'"),
        ("optimizer.lr=none", "optimizer.lr must be a finite number, got 'none'"),
        ("optimizer.betas=0.9", r"optimizer.betas must be 2 values \(a finite number each\), got '0.9'"),
        ("optimizer.betas=[0.9,0.95", r"optimizer.betas must be 2 values"),
        ("schedule.steps=1.5", "schedule.steps must be an integer, got '1.5'"),
        ("schedule.steps=1e3", "schedule.steps must be an integer, got '1e3'"),
        ("schedule.steps=0", "schedule.steps must be an integer of at least 1, got 0"),
        ("schedule.schedule=cosine-epochs", "schedule.schedule must be one of cosine, constant, got 'cosine-epochs'"),
        ("data.packing=docs", "data.packing must be one of stream, documents, got 'docs'"),
        ("execution.compile=maybe", "execution.compile must be none or true or false, got 'maybe'"),
        ("execution.shard_size=half", "execution.shard_size must be none or an integer, got 'half'"),
        ("execution.activation_checkpointing=most", "must be one of none, all or an integer, got 'most'"),
        ("execution.activation_checkpointing=0", "activation_checkpointing must be an integer of at least 1, got 0"),
        ("model.mixer=[swila", r"model.mixer must be a list .* got '\[swila'"),
        ("model.mixer=mamba", "mixer must be one of swila, .* got 'mamba'"),
        ("model.attention_layers=x", r"attention_layers must be none or a list \(an integer each\), got 'x'"),
        ("model.mixer_options=3", "model.mixer_options must be a dict, got '3'"),
        ("model.mixer_options.swila.num_heads=1.5", "swila.num_heads must be an integer, got '1.5'"),
        ("model.mixer_options.swila.temporal_bias=NaN", "numbers must be finite, got NaN"),
        ("model.mixer_options.swila.num_heads.x=1", "'num_heads' in .* is a value, 2, and has no fields"),
        ("model.mixer_options.swila.num_hedas=1", "mixer_options of 'swila': 'num_hedas' is not an option"),
        ("model.mixer_options.kda.num_heads=1", "options of 'kda', which no layer uses"),
        ("optimizer.clip=-1", "optimizer.clip must be above 0"),
        ("optimizer.weight_decay=-1", "optimizer.weight_decay must be at least 0, got -1.0"),
        ("optimizer.betas=0.9,1", r"optimizer.betas must be at least 0 and below 1, got \(0.9, 1.0\)"),
        ("optimizer.eps=0", "optimizer.eps must be above 0, got 0.0"),
        ("seed=-1", "seed must be at least 0, got -1"),
    ],
)
def test_mistakes(setting, message):
    with pytest.raises(ValueError, match=message):
        change(get_recipe("swila-tiny"), [setting])


NAMES = [*recipe_names("tiny"), "swila-16-115m", "gdn-mom-374m", "hybrid-temporal-swila-1.3b"]


@pytest.mark.parametrize("name", NAMES)
def test_json_and_back(name):
    recipe = change(get_recipe(name), ["execution.activation_checkpointing=2", "logging.wandb=x"])
    read = from_json(json.loads(json.dumps(to_json(recipe))))
    assert read == recipe
    assert type(read.optimizer.betas) is tuple
    assert to_json(read) == to_json(recipe)


@pytest.mark.parametrize(
    ("part", "field", "wrong", "message"),
    [
        ("optimizer", "lr", "3e-4", "optimizer.lr must be a finite number, got '3e-4'"),
        ("optimizer", "betas", [0.9], "optimizer.betas must be 2 values"),
        ("schedule", "steps", 1.5, "schedule.steps must be an integer, got 1.5"),
        ("schedule", "steps", True, "schedule.steps must be an integer, got True"),
        ("data", "packing", "docs", "data.packing must be one of"),
        ("data", "longth", 3, "data.longth is not a field of a recipe; there are length, batch_size, packing"),
        ("optimizer", "eps", -1.0, "optimizer.eps must be above 0"),
    ],
)
def test_json_that_is_no_recipe(part, field, wrong, message):
    found = to_json(get_recipe("swila-tiny"))
    found[part][field] = wrong
    with pytest.raises(ValueError, match=message):
        from_json(found)


def test_json_with_a_part_missing():
    found = to_json(get_recipe("swila-tiny"))
    del found["data"]["length"]
    with pytest.raises(ValueError, match=r"data\.length is missing in the recipe"):
        from_json(found)
    with pytest.raises(ValueError, match=r"data must be a dict of fields, got 3"):
        from_json({**to_json(get_recipe("swila-tiny")), "data": 3})


def test_an_integer_is_a_float_in_json():
    found = to_json(get_recipe("swila-tiny"))
    found["optimizer"]["clip"] = 1
    clip = from_json(found).optimizer.clip
    assert clip == 1.0
    assert type(clip) is float


@pytest.mark.parametrize("name", NAMES)
def test_a_description_has_every_field_and_can_be_set(name):
    recipe = get_recipe(name)
    lines = describe(recipe).splitlines()
    assert [line.partition("=")[0].strip() for line in lines] == setting_names(recipe)
    assert len({line.index(" = ") for line in lines}) == 1, "aligned"
    start = change(get_recipe("swila-small"), ["model.mixer_options={}", "seed=9", "optimizer.clip=none"])
    assert change(start, lines) == recipe


def test_every_field_is_described():
    names = setting_names(get_recipe("swila-tiny"))
    assert {name.partition(".")[0] for name in names} == set(asdict(get_recipe("swila-tiny")))
    assert "model.mixer_options.swila.balance_marginal" in names
    assert "stability.skip_bad_batches" in names
