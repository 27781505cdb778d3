"""Small tokenizers and texts."""

import json

import pytest

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


def word_tokenizer(special=("<unk>", "<s>", "</s>")):
    """A tokenizer with a token for each word, after special tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    vocab = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token=special[0]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def save_tokenizer(path, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    word_tokenizer(**options).save(str(path))
    return path


def sentence(number):
    """A text that is different for every number."""
    digits = [number // len(WORDS) ** i % len(WORDS) for i in range(4)]
    return " ".join(WORDS[digit] for digit in digits) + " and" * (number % 7)


def ids_of(text):
    """The ids of a text by :func:`word_tokenizer`, with BOS."""
    return [1, *(3 + WORDS.index(word) if word in WORDS else 0 for word in text.split())]


def write_jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path
