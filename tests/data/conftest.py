"""A small tokenizer, and token directories made from lists of tokens."""

import itertools
import json

import numpy as np
import pytest

from swila.data import TokenData, write_tokens
from text_data import save_tokenizer


@pytest.fixture
def make_tokenizer(tmp_path):
    def make(name="tokenizer.json", **options):
        return save_tokenizer(tmp_path / name, **options)

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
