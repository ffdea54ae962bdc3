"""Medians, spreads, paired ratios and bootstrap intervals: the few statistics a comparison needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_DRAWS = 10_000


@dataclass(frozen=True)
class Spread:
    """A middle and how far the values lie around it; what `low` and `high` are, the maker says.

    A ratio of a single pair spreads over nothing: its `low` and `high` are NaN.
    """

    middle: float
    low: float
    high: float

    def __truediv__(self, number: float) -> Spread:
        return Spread(self.middle / number, self.low / number, self.high / number)


def quartiles(values: Sequence[float]) -> Spread | None:
    """The median, with the first and third quartile."""
    if not values:
        return None
    low, middle, high = np.quantile(np.asarray(values, dtype=float), (0.25, 0.5, 0.75))
    return Spread(float(middle), float(low), float(high))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[tuple[float, float]]:
    """Values of the same block or seed side by side; what only one of them has is left out."""
    return [(ours[key], theirs[key]) for key in ours if key in theirs]


def ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Spread | None:
    """The median of the paired ratios, with quartiles."""
    found = [a / b for a, b in paired(ours, theirs) if b]
    return quartiles(found) if len(found) != 1 else Spread(found[0], math.nan, math.nan)


def bootstrap_ratio(ours: Mapping[int, float], theirs: Mapping[int, float], seed: int = 0) -> Spread | None:
    """The ratio of the means over common seeds, with its 95 % bootstrap interval: whole pairs are drawn."""
    pairs = np.asarray(paired(ours, theirs), dtype=float)
    if not len(pairs) or not pairs[:, 1].sum() or not np.isfinite(pairs).all():
        return None
    if len(pairs) == 1:
        return Spread(float(pairs[0, 0] / pairs[0, 1]), math.nan, math.nan)
    drawn = pairs[np.random.default_rng(seed).integers(0, len(pairs), size=(_DRAWS, len(pairs)))].sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanquantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    return Spread(float(pairs[:, 0].sum() / pairs[:, 1].sum()), float(low), float(high))


def mean_and_range(values: Sequence[float]) -> Spread | None:
    """The mean, with the least and the largest."""
    finite = [value for value in values if math.isfinite(value)]
    return Spread(sum(finite) / len(finite), min(finite), max(finite)) if finite else None
