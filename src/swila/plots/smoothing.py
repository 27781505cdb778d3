"""Running means of curves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from swila.plots.curves import Curve

SHARE = 50  # a point is averaged with this part of the curve's points on either side


def smooth(curve: Curve) -> Curve:
    """The running mean over a fiftieth of the points on either side, at least one; at the ends over those there are."""
    reach = max(1, len(curve) // SHARE)
    sums = [0.0, *accumulate(value for _, value in curve)]
    bounds = [(max(i - reach, 0), min(i + reach + 1, len(curve))) for i in range(len(curve))]
    means = [(sums[end] - sums[begin]) / (end - begin) for begin, end in bounds]
    return [(x, mean) for (x, _), mean in zip(curve, means, strict=True)]


def thin(curve: Curve, most: int) -> Curve:
    """A curve with at most ``most`` points, each the mean of as many neighbours as the others."""
    size = -(-len(curve) // most)
    groups = [curve[i : i + size] for i in range(0, len(curve), size)] if size > 1 else [[point] for point in curve]
    return [(_mean([x for x, _ in group]), _mean([y for _, y in group])) for group in groups]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
