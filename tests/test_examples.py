"""The examples run, and what they train learns."""

import importlib.util
from pathlib import Path

import pytest

from swila.pretraining.recipes import load_recipe

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_they_are_short(path):
    assert len(path.read_text().splitlines()) <= 50


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_train_with_transformers(tmp_path, capsys):
    loss = load("train_with_transformers").main(
        [
            "--output_dir",
            str(tmp_path),
            "--max_steps",
            "20",
            "--disable_tqdm",
            "true",
            "--gradient_accumulation_steps",
            "2",
        ]
    )
    assert loss < 3.7  # a uniform guess among 256 bytes is 5.5
    assert {"model.safetensors", "config.json", "README.md"} <= {path.name for path in tmp_path.iterdir()}
    assert "def " in capsys.readouterr().out


def test_swap_into_a_block():
    losses = load("swap_into_a_block").main(steps=40)
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


def test_recipes_of_a_file():
    path = EXAMPLES / "pretraining_recipe.py"
    assert load_recipe(str(path)).model.mixer == ["swila", "swila", "swila", "attention"]
    assert load_recipe(f"{path}:longer").schedule.steps == 1000
