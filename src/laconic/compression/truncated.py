"""Levels fitted to truncated normals: the expected cost of rounding to a table, and the table that costs least.

Coordinates of a gradient, as shares of its norm, are modelled as draws from a mixture of normals that are cut to [-1,
1]. Tables are symmetric around zero, so that only positive levels and positive coordinates are considered. Everything
is in float64 and without draws: all who have the same statistics find the same levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_NARROW = 1e-6  # the smallest deviation of a component
_STARTS = np.linspace(0.1, 0.9, 9)
_STEPS, _RATE = 300, 0.1


@dataclass(frozen=True)
class Normals:
    """A mixture of normals: the means, deviations and weights of its components before they are cut to [-1, 1]."""

    mean: Array
    deviation: Array
    weight: Array

    @classmethod
    def of(cls, mean: Any, deviation: Any, weight: Any = 1.0) -> Normals:
        """Return a mixture whose weights are scaled to add up to one."""
        m, s, w = np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, np.float64)) for v in (mean, deviation, weight)))
        return cls(m, np.maximum(s, _NARROW), w / w.sum())

    @property
    def folded(self) -> Normals:
        """The mixture and its mirror image, whose positive half is half of the distribution of magnitudes."""
        return Normals.of(
            np.concatenate([self.mean, -self.mean]), np.tile(self.deviation, 2), np.tile(self.weight, 2) / 2
        )

    def moments(self, low: Any, high: Any) -> tuple[Array, Array, Array]:
        """Return the integrals of 1, r and r² from `low` to `high`, which may be arrays, within [-1, 1]."""
        a, b = (np.asarray(end, np.float64)[..., None] for end in (low, high))
        left, right = (a - self.mean) / self.deviation, (b - self.mean) / self.deviation
        whole = _between((-1 - self.mean) / self.deviation, (1 - self.mean) / self.deviation)
        share = self.weight / whole
        none = _between(left, right)
        first = self.mean * none - self.deviation * (_density(right) - _density(left))
        edges = b * _density(right) - a * _density(left)
        second = self.mean * first + self.deviation**2 * none - self.deviation * edges
        return (none * share).sum(-1), (first * share).sum(-1), (second * share).sum(-1)


def _between(left: Array, right: Array) -> Array:
    """Return the mass of a standard normal between two values, computed from the side on which nothing cancels."""
    from scipy.special import ndtr  # here, since few sentences need it

    upper: Array = np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left))
    return upper


def _density(z: Array) -> Array:
    found: Array = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    return found


def model_variance(levels: Array, model: Normals, zero: bool = False) -> Array:
    """Return the expected loss of rounding positive coordinates to these levels and their mirror images.

    With `zero`, zero is a level, too. Tables may be stacked.
    """
    low, high = levels[..., :-1], levels[..., 1:]
    none, first, second = model.moments(low, high)
    outer = ((low + high) * first - low * high * none - second).sum(-1)
    least = levels[..., 0]
    none, first, second = model.moments(np.zeros_like(least), least)
    inner = least * first - second if zero else least**2 * none - second
    total: Array = np.asarray(outer + inner)
    return total


def sweep(levels: Array, model: Normals, zero: bool = False) -> Array:
    """Move each level but the last, from the smallest on, to where the variance is least while the others stay.

    Between neighbours a and c that is where the mass up to c is that of ∫(r - a)/(c - a). The neighbour of the smallest
    level is its own mirror image; with `zero` it is zero.
    """
    found = levels.copy()
    for j in range(len(found) - 1):
        found[j] = moved(found, j, model, zero)
    return found


def moved(levels: Array, j: int, model: Normals, zero: bool = False) -> float:
    """Return where level j moves; it stays where there is nothing to round on either side."""
    a, c = float(levels[j - 1]) if j else 0.0, float(levels[j + 1])
    if j == 0 and not zero:

        def slope(level: float) -> float:
            none, first, _ = model.moments(level, c)
            return float(2 * level * model.moments(0.0, level)[0] - (c * none - first))

        return _root(slope, a, c, float(levels[j]))
    none, first, _ = model.moments(a, c)
    wanted = (first - a * none) / (c - a) if c > a else 0.0
    return _root(lambda level: float(wanted - model.moments(level, c)[0]), a, c, float(levels[j]))


def _root(rising: Callable[[float], float], low: float, high: float, stay: float) -> float:
    if not rising(low) < 0 < rising(high):
        return stay
    from scipy.optimize import brentq

    return float(brentq(rising, low, high, xtol=1e-15, rtol=1e-14))


def powers(p: Any, count: int) -> Array:
    """Return `count` levels 1, p, p², … in ascending order."""
    found: Array = np.asarray(p, np.float64)[..., None] ** np.arange(count - 1, -1, -1)
    return found


def slope(p: Any, count: int, model: Normals) -> Array:
    """Return the derivative of the variance of such levels in p."""
    p = np.asarray(p, np.float64)
    j, s = np.arange(count - 1), count - 1
    levels = powers(p, count)
    none, first, _ = model.moments(levels[..., :-1][..., ::-1], levels[..., 1:][..., ::-1])
    p = p[..., None]
    outer = (first * (j * p ** np.maximum(j - 1.0, 0) + (j + 1) * p**j) - none * (2 * j + 1) * p ** (2 * j)).sum(-1)
    inner, _, _ = model.moments(np.zeros_like(levels[..., 0]), levels[..., 0])
    total: Array = np.asarray(outer + 2 * s * p[..., 0] ** (2 * s - 1) * inner)
    return total


def descend(p: Any, count: int, model: Normals, rate: float = _RATE) -> Array:
    """Make one step of gradient descent; p stays between 0 and 1."""
    found: Array = np.clip(p - rate * slope(p, count, model), 1e-3, 1 - 1e-3)
    return found


def multiplier(before: float, count: int, model: Normals) -> float:
    """Return the best p that descents from several starts find, which is not worse than 1/2 nor than `before`."""
    ends = _STARTS
    for _ in range(_STEPS):
        ends = descend(ends, count, model)
    tried = np.append(ends, [0.5, before])
    return float(tried[np.argmin(model_variance(powers(tried, count), model))])
