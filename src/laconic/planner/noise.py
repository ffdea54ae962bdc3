"""The gradient-noise model of steps to a target: how much a larger batch is worth.

With the gradient's noise scale B (the batch at which noise and signal are equal), a batch b needs S(1 + B/b) steps
(McCandlish et al., arXiv 1812.06162). Pollux (Qiao et al., OSDI 2021) calls the share of a sample that is not wasted,
(B + b0) / (B + b) against a batch b0, the statistical efficiency, and counts progress in steps of b0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from laconic.planner.values import PlanError


@dataclass(frozen=True)
class StepLaw:
    """Steps to a target by batch size: the fewest that any batch needs, and the fewest samples."""

    least_steps: float
    least_samples: float

    def __post_init__(self) -> None:
        if not (min(self.least_steps, self.least_samples) >= 0 and self.least_steps + self.least_samples < math.inf):
            raise PlanError(f"steps and samples to a target are finite and not negative: {self}")
        if self.least_steps + self.least_samples == 0:
            raise PlanError("a target that needs neither steps nor samples is no target")

    @property
    def noise_scale(self) -> float:
        """The batch that needs twice the fewest steps and twice the fewest samples."""
        return self.least_samples / self.least_steps if self.least_steps else math.inf

    def steps(self, batch: float) -> float:
        """Return the number of steps to the target with this batch size."""
        return self.least_steps + self.least_samples / _positive(batch)


def fit(steps: Mapping[int, float]) -> StepLaw:
    """Fit the law to steps to one target by batch size: least squares of relative errors, neither part negative."""
    if len(steps) < 2:
        raise PlanError(f"the law needs steps of at least two batch sizes, not of {len(steps)}")
    if any(not 0 < count < math.inf for count in steps.values()):
        raise PlanError(f"steps to a target are positive: {dict(steps)}")
    rows = [(1 / count, 1 / (_positive(batch) * count)) for batch, count in steps.items()]
    # Scaled to similar lengths, as batch sizes may be thousands; the target of every row is 1.
    scale = math.sqrt(math.fsum(x * x for x, _ in rows) / math.fsum(y * y for _, y in rows))
    scaled = [(x, scale * y) for x, y in rows]
    xx, xy, yy = (math.fsum(row[i] * row[j] for row in scaled) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (math.fsum(row[i] for row in scaled) for i in (0, 1))
    determinant = xx * yy - xy * xy
    both = ((x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant) if determinant > 1e-12 * xx * yy else None
    if both is None or min(both) < 0:
        alone = [(x / xx, 0.0), (0.0, y / yy)]
        both = min(alone, key=lambda c: math.fsum((c[0] * u + c[1] * v - 1) ** 2 for u, v in scaled))
    return StepLaw(both[0], scale * both[1])


def efficiency(batch: float, noise_scale: float, base: float) -> float:
    """Return how much a sample of this batch advances training, relative to one of `base` (Pollux's EFFICIENCY)."""
    if math.isinf(noise_scale):
        return 1.0
    return (_scale(noise_scale) + _positive(base)) / (noise_scale + _positive(batch))


def gain(batch: float, noise_scale: float, base: float) -> float:
    """Return how many steps of `base` one step of this batch is worth: between 1 and batch / base (AdaScale's gain)."""
    return batch / base * efficiency(batch, noise_scale, base)


def noise_from_gain(batch: float, worth: float, base: float) -> float:
    """Return the noise scale at which a step of this batch is worth so many of `base`.

    Where no noise scale gives that worth, it is the nearest extreme: 0 (no noise) or infinity (nothing but noise).
    """
    if batch == base:
        raise PlanError("a step is worth one step of its own batch size, whatever the noise: give another base")
    inverse = (batch / base - worth) / (worth - 1) if worth != 1 else math.inf
    if not 0 < inverse < math.inf:
        return math.inf if (worth > 1) == (batch > base) and worth != 1 else 0.0
    return batch / inverse


def steps_ratio(batch: float, base: float, noise_scale: float) -> float:
    """Return how many steps this batch needs for each step of `base`: the cost or gain of changing the global batch."""
    return 1 / gain(batch, noise_scale, base)


def noise_scale(small_batch: int, small_square: float, large_batch: int, large_square: float) -> float:
    """Return the noise scale tr Σ / |G|² from squared norms of mean gradients of two batch sizes, averaged over steps.

    The two may be a worker's own gradient and the average of all workers. Σ is the covariance of a sample's gradient, G
    the true gradient; both are estimated without bias (McCandlish et al., appendix A.1). Infinite where no signal is
    left.
    """
    if not 0 < small_batch < large_batch:
        raise PlanError(
            f"the noise scale needs two batch sizes, the smaller first, not {small_batch} and {large_batch}"
        )
    signal = (large_batch * large_square - small_batch * small_square) / (large_batch - small_batch)
    noise = (small_square - large_square) / (1 / small_batch - 1 / large_batch)
    if noise <= 0:
        return 0.0
    return noise / signal if signal > 0 else math.inf


def steps_for(progress: Iterable[tuple[float, float]], batch: float, base: float) -> float:
    """Return the steps of this batch that correspond to a path of (steps of `base`, noise scale during them)."""
    return math.fsum(part / gain(batch, noise, base) for part, noise in progress)


def _positive(batch: float) -> float:
    if not 0 < batch < math.inf:
        raise PlanError(f"a batch has a positive number of samples, not {batch}")
    return batch


def _scale(noise: float) -> float:
    if not noise >= 0:
        raise PlanError(f"a noise scale is not negative, not {noise}")
    return noise
