"""What does not fit together is an error before the first update, and leaves no directory."""

from dataclasses import replace

import pytest
from small_runs import (
    PLAIN,
    VOCABULARY,
    small,
    write_data,
)

from swila.pretraining.engine import pretrain
from swila.training.json_files import read_json

pytestmark = pytest.mark.usefixtures("quick")


def corrupt(data):
    shard = next(data.glob("train-*0.bin"))
    content = bytearray(shard.read_bytes())
    content[7] ^= 1
    shard.write_bytes(content)


@pytest.mark.parametrize(
    ("recipe", "made", "message"),
    [
        (PLAIN, {"train": 0}, r"tokens must have documents to train on, got none"),
        (small("model.vocab_size=19"), {}, r"model\.vocab_size must be at least 20, .* got 19"),
        (small("data.length=100000"), {}, r"length must be at most \d+, because the split 'train' has"),
        (small("execution.shard_size=3"), {}, r"execution\.shard_size must divide the 1 ranks, got 3"),
        (replace(PLAIN, precision="float8"), {}, r"precision must be one of bfloat16, float32, got 'float8'"),
    ],
)
def test_what_does_not_fit_is_an_error_that_leaves_no_directory(tmp_path, recipe, made, message):
    data = write_data(tmp_path / "tokens", **made)
    with pytest.raises(ValueError, match=message):
        pretrain(recipe, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_corrupt_data_is_an_error(tmp_path):
    data = write_data(tmp_path / "tokens")
    corrupt(data)
    with pytest.raises(ValueError, match=r"train-00000\.bin is corrupt: its SHA-256"):
        pretrain(PLAIN, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    pretrain(small("schedule.steps=1", "schedule.warmup_steps=0"), data, tmp_path / "run", verify=False)
    next(data.glob("train-*0.bin")).write_bytes(b"")
    with pytest.raises(ValueError, match=r"train-00000\.bin must have \d+ bytes, got 0"):
        pretrain(PLAIN, data, tmp_path / "run", verify=False)


def test_another_run_is_an_error(plain, tmp_path, data):
    other = write_data(tmp_path / "other", seed=1)
    tokenizer = write_data(tmp_path / "tokenizer", text="another tokenizer")
    for recipe, tokens, message in (
        (small("optimizer.lr=0.02"), data, r"recipe\.optimizer\.lr is 0\.01 there and 0\.02 here"),
        (small("seed=1"), data, r"recipe\.seed is 0 there and 1 here"),
        (small(mixer="deltanet"), data, r"recipe\.model\.mixer is attention there and deltanet here"),
        (PLAIN, tokenizer, r"tokens\.tokenizer_sha256 is"),
        (PLAIN, other, r"tokens\.fingerprint is"),
    ):
        with pytest.raises(ValueError, match=rf"holds another run \({message}"):
            pretrain(recipe, tokens, plain.run)
    assert pretrain(PLAIN, data, plain.run) == plain.result


def test_a_recipe_without_a_vocabulary_takes_that_of_the_data(data, tmp_path):
    pretrain(small("model.vocab_size=none", "schedule.steps=1", "schedule.warmup_steps=0"), data, tmp_path / "run")
    assert read_json(tmp_path / "run" / "recipe.json")["model"]["vocab_size"] == 64
    assert VOCABULARY < 64
