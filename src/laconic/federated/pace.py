"""How long clients take for a round, and shares of work with which all of them take equally long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from laconic.errors import LaconicError
from laconic.federated.population import Floats, Population


@dataclass(frozen=True, eq=False)
class Pace:
    """Seconds of every client, by its number.

    - `sample`, `step`: of training on a sample, and of a step beside its samples.
    - `up`, `down`: of sending and of receiving a byte.
    - `held`: how many samples it holds.
    """

    sample: Floats
    step: Floats
    up: Floats
    down: Floats
    held: Floats

    @classmethod
    def of(cls, population: Population) -> Pace:
        """Return the pace of a population."""
        return cls(
            np.asarray(population.sample_seconds),
            np.asarray(population.step_seconds),
            8 / np.asarray(population.up_bits),
            8 / np.asarray(population.down_bits),
            population.shards.sizes.astype(np.float64),
        )

    def epoch(self, batch: ArrayLike) -> Floats:
        """Return how long an epoch of steps with so many samples takes."""
        return np.asarray(self.held * self.sample + np.ceil(self.held / np.asarray(batch)) * self.step)

    def transfer(self, up_bytes: ArrayLike, down_bytes: ArrayLike) -> Floats:
        """Return how long so many bytes up and down take."""
        return np.asarray(self.up * np.asarray(up_bytes) + self.down * np.asarray(down_bytes))


def equal_times(
    fixed: ArrayLike, each: ArrayLike, low: ArrayLike, high: ArrayLike, mean: float, weights: ArrayLike = 1.0
) -> Floats:
    """Return the shares x within low and high, of this weighted mean, with which all take equally long: fixed + each x.

    Whoever would take longer with the least share, or less long with the largest, has that one: the longest time is as
    short as it can be.
    """
    fixed_, each_, low_, high_, weights_ = (
        np.array(x) for x in np.broadcast_arrays(*(np.asarray(y, float) for y in (fixed, each, low, high, weights)))
    )
    weights_ /= weights_.sum()
    least, most = float(weights_ @ low_), float(weights_ @ high_)
    if not least - 1e-9 <= mean <= most + 1e-9:
        raise LaconicError(f"shares between {least:g} and {most:g} in the mean do not have the mean {mean:g}")
    ends = np.unique(np.concatenate([fixed_ + each_ * low_, fixed_ + each_ * high_]))

    def shares(time: float) -> Floats:
        return np.asarray(np.clip((time - fixed_) / each_, low_, high_))

    means = np.array([weights_ @ shares(time) for time in ends])
    above = int(np.clip(np.searchsorted(means, mean), 1, len(ends) - 1)) if len(ends) > 1 else 0
    if not above:
        return shares(float(ends[0]))
    before, after = means[above - 1], means[above]
    part = (mean - before) / (after - before) if after > before else 1.0
    return shares(float(ends[above - 1] + np.clip(part, 0, 1) * (ends[above] - ends[above - 1])))
