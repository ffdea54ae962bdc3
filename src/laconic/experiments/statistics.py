"""The few statistics a comparison needs: medians, spreads, paired ratios and bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_DRAWS = 10_000


@dataclass(frozen=True)
class Spread:
    """A central value and the ends of its spread; the function that returns it defines what `low` and `high` are.

    The ratio of a single pair has no spread: its `low` and `high` are NaN.
    """

    middle: float
    low: float
    high: float

    def __truediv__(self, number: float) -> Spread:
        return Spread(self.middle / number, self.low / number, self.high / number)


def quartiles(values: Sequence[float]) -> Spread | None:
    """Return the median with the first and the third quartile, or None where there are no values."""
    if not values:
        return None
    low, middle, high = np.quantile(np.asarray(values, dtype=float), (0.25, 0.5, 0.75))
    return Spread(float(middle), float(low), float(high))


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[tuple[float, float]]:
    """Return the pairs of values that belong to the same block or seed; keys that only one side has are left out."""
    return [(ours[key], theirs[key]) for key in ours if key in theirs]


def ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Spread | None:
    """Return the median of the paired ratios with their quartiles; pairs whose denominator is 0 are left out."""
    found = [a / b for a, b in paired(ours, theirs) if b]
    return quartiles(found) if len(found) != 1 else Spread(found[0], math.nan, math.nan)


def bootstrap_ratio(ours: Mapping[int, float], theirs: Mapping[int, float], seed: int = 0) -> Spread | None:
    """Return the ratio of the means over common seeds with its 95 % percentile bootstrap interval of resampled pairs.

    `scipy.stats.bootstrap` draws the same pairs and gives the same interval to rounding, but one of NaN where a
    resample is 0/0, and importing it takes a second.
    """
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
    """Return the mean of the finite values with the least and the largest, or None where none is finite."""
    finite = [value for value in values if math.isfinite(value)]
    return Spread(sum(finite) / len(finite), min(finite), max(finite)) if finite else None


def spearman(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three pairs, or where all of one side are equal."""
    if len(ours) < 3:
        return None
    a, b = (_ranks(np.asarray(values)) for values in (ours, theirs))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values, equal ones with their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[places])
