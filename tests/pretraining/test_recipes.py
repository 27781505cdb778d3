"""Recipes by name are complete and valid, and a user's file gives a recipe or an error that says why not."""

import dataclasses

import pytest

from swila.models.language.presets import SIZES, get_preset, preset_names
from swila.pretraining.recipe import Recipe
from swila.pretraining.recipes import RECIPES, get_recipe, load_recipe, recipe_names

pytestmark = pytest.mark.unpoisoned  # a patched torch.empty does not know the meta device


def test_there_is_a_recipe_for_each_preset():
    assert recipe_names() == list(RECIPES) == preset_names()
    assert {size: len(recipe_names(size)) for size in SIZES} == {
        "tiny": 13,
        "small": 13,
        "115m": 6,
        "374m": 13,
        "1.3b": 6,
    }
    assert recipe_names("374M") == [name for name in recipe_names() if name.endswith("-374m")]
    with pytest.raises(ValueError, match=r"size must be one of tiny, small, 115m, 374m, 1\.3b, got '7b'"):
        recipe_names("7b")


@pytest.mark.parametrize("size", SIZES)
def test_recipes_are_valid_and_train_the_preset(size):
    for name in recipe_names(size):
        recipe = get_recipe(name)
        recipe.check()
        assert recipe.name == name
        assert recipe.summary
        model = dataclasses.asdict(recipe.model)
        assert {field: model[field] for field in get_preset(name)} == get_preset(name)
        assert recipe.model.vocab_size == (None if size == "tiny" else 32_000)
        # whole micro-batches on one GPU, and on the eight of a node
        ranks = 8 if size in ("374m", "1.3b", "115m") else 1
        assert recipe.data.batch_size % (ranks * recipe.execution.micro_batch) == 0
        assert recipe.schedule.steps >= recipe.checkpoints.every


def test_recipes_share_no_dicts():
    get_recipe("swila-tiny").model.mixer_options["swila"]["num_heads"] = 77
    assert get_recipe("swila-tiny").model.mixer_options["swila"]["num_heads"] == 2


@pytest.mark.parametrize(
    ("size", "steps", "warmup", "tokens"),
    [
        ("374m", 28_610, 954, 15.0e9),
        ("115m", 9_537, 318, 5.0e9),
        ("1.3b", 52_000, 954, 27.3e9),
        ("small", 1_000, 100, 131e6),
        ("tiny", 200, 20, 0.41e6),
    ],
)
def test_tokens(size, steps, warmup, tokens):
    recipe = get_recipe(f"temporal-swila-{size}")
    assert (recipe.schedule.steps, recipe.schedule.warmup_steps) == (steps, warmup)
    assert recipe.tokens == pytest.approx(tokens, rel=0.005)


def test_tokens_per_parameter_at_1_3b():
    assert get_recipe("transformer-1.3b").tokens == pytest.approx(20 * 1364.3e6, rel=0.002)


def test_learning_rates_of_the_paper():
    rate = get_recipe("gdn-374m").learning_rate()
    assert rate.at(953) == pytest.approx(3e-4)
    assert rate.at(0) == pytest.approx(3e-4 / 954)
    assert rate.at(28_610) == pytest.approx(3e-5), "the final learning rate"


def test_small_and_tiny():
    small, tiny = get_recipe("kda-small"), get_recipe("kda-tiny")
    assert (small.data.length, small.data.batch_size, small.execution.micro_batch) == (2048, 64, 32)
    assert (small.optimizer.lr, small.optimizer.weight_decay, small.precision) == (1e-3, 0.1, "bfloat16")
    assert (tiny.data.length, tiny.data.batch_size, tiny.execution.micro_batch) == (256, 8, 8)
    assert (tiny.optimizer.lr, tiny.precision) == (2e-3, "float32")
    intervals = (tiny.checkpoints.every, tiny.validation.every, tiny.validation.sequences, tiny.logging.every)
    assert intervals == (50, 50, 64, 1)


def test_unknown_names():
    with pytest.raises(ValueError, match=r"got 'temporal-swila-375m'\. Did you mean temporal-swila-374m"):
        get_recipe("temporal-swila-375m")
    with pytest.raises(ValueError, match=r"got 'mamba'\. `swila recipes` lists all names"):
        load_recipe("mamba")
    assert load_recipe("Swila-TINY") == get_recipe("swila-tiny")


OWN = """
from dataclasses import dataclass, replace
from swila.pretraining.recipes import get_recipe

@dataclass
class Ours:
    seed: int

def recipe():
    return replace(get_recipe("swila-tiny"), name="mine", seed=Ours(7).seed)

def longer():
    return replace(recipe(), seed=8)

def nothing():
    pass

def broken():
    x = 1
    return x / 0

def invalid():
    return replace(recipe(), precision="float8")

number = 3
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "my_recipe.py"
    path.write_text(OWN)
    return path


def test_a_file(own):
    recipe = load_recipe(str(own))
    assert isinstance(recipe, Recipe)
    assert (recipe.name, recipe.seed) == ("mine", 7)
    assert load_recipe(f"{own}:longer").seed == 8
    own.write_text(OWN.replace("Ours(7)", "Ours(9)"))
    assert load_recipe(str(own)).seed == 9, "the file is read again"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", r"nothing\(\) of .*my_recipe\.py must return a Recipe, got NoneType"),
        ("broken", r"broken\(\) of .*my_recipe\.py failed in line 20: ZeroDivisionError: division by zero"),
        ("invalid", r"invalid\(\) of .* returns an invalid recipe: precision must be one of bfloat16, float32"),
        (
            "absent",
            r"must have a function 'absent', has recipe, longer, nothing, broken, invalid; .*my_recipe\.py:FUNCTION",
        ),
        ("number", r"must have a function 'number'"),
    ],
)
def test_a_function_that_gives_no_recipe(own, function, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(f"{own}:{function}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch\n\nraise RuntimeError('no')\n", r"failed in line 3: RuntimeError: no"),
        ("x = 1\ndef recipe(:\n", r"failed in line 2: SyntaxError"),
        ("import no_such_package\n", r"failed in line 1: ModuleNotFoundError"),
        ("x = 1\n", r"must have a function 'recipe', has none"),
    ],
)
def test_a_file_that_cannot_be_used(own, text, message):
    own.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_recipe(str(own))


def test_a_relative_path(own, monkeypatch):
    monkeypatch.chdir(own.parent)
    assert load_recipe("my_recipe.py:longer").seed == 8
    with pytest.raises(ValueError, match=r"broken\(\) of my_recipe\.py failed in line 20: ZeroDivisionError"):
        load_recipe("my_recipe.py:broken")


def test_no_such_file(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file '.*absent\.py'"):
        load_recipe(str(tmp_path / "absent.py"))
