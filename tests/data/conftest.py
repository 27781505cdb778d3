"""A small tokenizer, and token directories made from lists of tokens."""

import itertools
import json

import numpy as np
import pytest

from swila.data import TokenData, write_tokens

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "under",
    "mat",
    "tree",
    "and",
    "then",
    "it",
    "was",
    "red",
    "blue",
]


def word_tokenizer(special=("<unk>", "<s>", "</s>"), extra=()):
    """A tokenizer with a token for each word, and special tokens before them."""
    tokenizers = pytest.importorskip("tokenizers")
    vocab = {word: number for number, word in enumerate([*special, *WORDS, *extra])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token=special[0]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


@pytest.fixture
def make_tokenizer(tmp_path):
    def make(name="tokenizer.json", **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        word_tokenizer(**options).save(str(path))
        return path

    return make


@pytest.fixture
def token_data(tmp_path):
    """Returns documents of these lengths as a token directory, with the tokens 1, 2, 3, … in the stream."""

    def make(lengths, *, vocab_size=60_000, shard_tokens=1 << 26, name="tokens", validation=()):
        file = tmp_path / "any-tokenizer.json"
        file.write_text(json.dumps({"model": "unused"}))
        splits = {"train": documents_of(lengths), "validation": documents_of(validation)}
        write_tokens(tmp_path / name, splits, file, vocab_size, shard_tokens=shard_tokens)
        return TokenData(tmp_path / name)

    return make


def documents_of(lengths):
    ends = np.cumsum([1, *lengths])
    return [np.arange(a, b) for a, b in itertools.pairwise(ends)]
