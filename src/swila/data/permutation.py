"""Permutations of ``0 … n - 1`` as functions: no table, the same on every machine."""

from __future__ import annotations

import numpy as np

ROUNDS = 8
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def permute(positions: np.ndarray, n: int, seed: int, epoch: int) -> np.ndarray:
    """Return the images of positions under the permutation of ``0 … n - 1`` that (seed, epoch) determines.

    A Feistel network permutes ``0 … 4^h - 1``, the smallest such range that holds n numbers. A number that it maps
    outside ``0 … n - 1`` is mapped again until it is inside (cycle walking), at most four times on average.

    Args:
        positions: Integers in ``[0, n)``, any shape.
        n: Number of elements.
        seed: Any integer; only its lowest 64 bits count.
        epoch: Number of the permutation, likewise.
    """
    half = np.uint64(max(1, -(-(n - 1).bit_length() // 2)))
    low = np.uint64((1 << int(half)) - 1)
    keys = _keys(seed, epoch)
    result = np.asarray(positions).astype(np.uint64)
    outside = np.ones(result.shape, dtype=bool)
    while outside.any():
        x = result[outside]
        left, right = x >> half, x & low
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & low)
        result[outside] = (left << half) | right
        outside = result >= np.uint64(n)
    return result.astype(np.int64)


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return a hash of each number: the finalizer of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _keys(seed: int, epoch: int) -> np.ndarray:
    """Return one key for each round: splitmix64 from a start that (seed, epoch) determines."""
    start = int(_mixed(np.array([(seed + _GOLDEN) & _MASK], dtype=np.uint64))[0])
    start = int(_mixed(np.array([(start ^ epoch) & _MASK], dtype=np.uint64))[0])
    steps = [(start + number * _GOLDEN) & _MASK for number in range(1, ROUNDS + 1)]
    return _mixed(np.array(steps, dtype=np.uint64))
