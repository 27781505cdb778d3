"""Random generators by name: independent of each other, of the order of use and of torch's global generator."""

from __future__ import annotations

import hashlib

import torch


def stream(seed: int, *names: object) -> torch.Generator:
    """Return a CPU generator for one purpose, for example ``stream(0, "cdar", "train", 3)``.

    Its seed is a hash of ``seed`` and ``names``. Different names give unrelated numbers, so training data, test data
    and initial weights never share any.
    """
    text = repr((int(seed), *map(str, names))).encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
