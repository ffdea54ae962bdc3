"""Goodput: how many samples a second a job trains on, times what each is worth, and the batch that makes it largest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

LEAST = 1e-8  # of a coefficient: what is not known yet takes no time
TRIED = 50  # batches
SLACK = 1e-8  # of quotients that are rounded up


class Sample(NamedTuple):
    """A measured step: hosts, workers, samples of a pass, the seconds of a pass, and of a step that sums gradients."""

    hosts: int
    workers: int
    local: int
    pass_seconds: float
    step_seconds: float


@dataclass(frozen=True)
class StepModel:
    """What a step takes, in seconds: of passes `compute[0] + compute[1] * local`; of sums of gradients, with K workers,
    `within[0] + within[1] * (K - 2)` on one host and `across` likewise on several; both overlap by a power mean.

    - `compute`, `across`, `within`: a constant and a slope each.
    - `overlap`: the exponent of the power mean: 1 is one after the other, 10 almost at the same time.
    """

    compute: tuple[float, float]
    across: tuple[float, float]
    within: tuple[float, float]
    overlap: float

    def sync_seconds(self, several: bool, workers: np.ndarray) -> np.ndarray:
        """Return what sums of gradients take; for a single worker nothing.

        - `several`: whether on several hosts.
        - `workers`: numbers of workers.
        """
        base, slope = self.across if several else self.within
        found: np.ndarray = np.where(workers > 1, base + slope * np.maximum(workers - 2, 0), LEAST)
        return found

    def step_seconds(
        self, several: bool, workers: np.ndarray, local: np.ndarray, accumulated: np.ndarray
    ) -> np.ndarray:
        """Return what steps take.

        - `several`: whether on several hosts.
        - `workers`: numbers of workers.
        - `local`: samples of a pass.
        - `accumulated`: passes before the one whose gradients are summed.
        """
        passes, power = self.compute[0] + self.compute[1] * local, self.overlap
        summed = (passes**power + self.sync_seconds(several, workers) ** power) ** (1 / power)
        whole: np.ndarray = accumulated * passes + summed
        return whole


def efficiency(batch: np.ndarray | float, tuned: float, grad_sqr: float, grad_var: float) -> np.ndarray | float:
    """Return what a sample of a batch is worth, as a share of what it is worth in the batch that a model was tuned for:
    (phi + M0) / (phi + M) with the noise scale phi = M0 * grad_var / grad_sqr.

    - `batch`: M, or several.
    - `tuned`: M0.
    - `grad_sqr`: the squared norm of the mean gradient.
    - `grad_var`: the variance of the gradient of a batch of M0.
    """
    return (grad_var + grad_sqr) / (grad_var + grad_sqr * (batch / tuned))


@dataclass(frozen=True)
class Limits:
    """What batches a job can have.

    - `tuned`: the batch that its model was tuned for, the least.
    - `most`: the largest.
    - `least_local`, `most_local`: the samples of a worker's pass.
    """

    tuned: int
    most: int
    least_local: int
    most_local: int

    @property
    def workers(self) -> int:
        """How many can share the largest batch."""
        return self.most // self.least_local

    @cached_property
    def choices(self) -> Choices:
        """The batches that are tried with 1, 2, ... workers."""
        return Choices(self)


class Choices:
    """Batches from the least to the largest in equal ratios, split into passes, a row for each number of workers.

    - `limits`: the least and the largest.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.workers = np.arange(1, limits.workers + 1)[:, None]
        least = np.minimum(np.maximum(limits.tuned, limits.least_local * self.workers), limits.most)
        wanted = least * (limits.most / least) ** np.linspace(0.0, 1.0, TRIED)
        local = wanted / self.workers
        before = np.ceil(local / limits.most_local - SLACK) - 1
        alone = (self.workers == 1) & (local > limits.tuned + SLACK)
        self.accumulated = np.where(alone, np.maximum(before, 1), before)
        self.local = np.ceil(local / (self.accumulated + 1) - SLACK)
        self.batch = self.workers * self.local * (self.accumulated + 1)
        self.allowed = (self.local >= limits.least_local) & (self.local <= limits.most_local)

    def best(
        self, model: StepModel, grad_sqr: float, grad_var: float, several: bool, workers: slice
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest goodput, and the batch that gives it, for some numbers of workers.

        - `model`: what steps take.
        - `grad_sqr`, `grad_var`: the norm and the variance of gradients now.
        - `several`: whether on several hosts.
        - `workers`: which rows: the first is one worker.
        """
        batch = self.batch[workers]
        seconds = model.step_seconds(several, self.workers[workers], self.local[workers], self.accumulated[workers])
        goodput = batch / seconds * efficiency(batch, self.limits.tuned, grad_sqr, grad_var)
        goodput = np.where(self.allowed[workers], goodput, 0.0)
        best = goodput.argmax(axis=1)[:, None]
        return np.take_along_axis(goodput, best, 1)[:, 0], np.take_along_axis(batch, best, 1)[:, 0]


@lru_cache(maxsize=4096)  # jobs of one kind begin with the same measurements
def fit_steps(samples: tuple[Sample, ...]) -> StepModel:
    """Return the model of what was measured: the least root mean squares of the logarithms' errors, of passes and of
    steps. What was never measured begins with perfect scaling: a coefficient that no sample tells is next to nothing,
    and until several hosts have been tried they are taken for hardly slower than one.

    - `samples`: what was measured.
    """
    from scipy.optimize import fmin_l_bfgs_b

    hosts, workers, local, passes, steps = (np.array(column, dtype=float) for column in zip(*samples, strict=True))
    start = np.array([0.1, 0.01] * 3 + [1.001])
    low, high = [LEAST] * 6 + [1.0], [np.inf] * 6 + [10.0]
    several, apart = hosts > 1, (hosts == 1) & (workers > 1)
    fixed: dict[int, float] = {}
    if len(np.unique(local)) == 1:
        fixed[0] = float(passes.mean()) / 2
    if not several.any():
        fixed |= {2: LEAST, 3: LEAST}
    if not apart.any():
        fixed |= {4: LEAST, 5: LEAST}
    if not (workers > 2).any():
        fixed |= {3: LEAST, 5: LEAST}
    for at, value in fixed.items():
        start[at] = low[at] = high[at] = value
    log_passes, log_steps, more = np.log(passes), np.log(steps), np.maximum(workers - 2, LEAST)
    across, within = several.astype(float), apart.astype(float)
    columns = np.stack([across, across * more, within, within * more])
    single, count = LEAST * (1 - across - within), len(samples)

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        base, slope, power = values[0], values[1], values[6]
        taken = base + slope * local
        summed = values[2:6] @ columns + single
        log_taken, log_summed = np.log(taken), np.log(summed)
        top = np.maximum(log_taken, log_summed)
        part_taken, part_summed = np.exp(power * (log_taken - top)), np.exp(power * (log_summed - top))
        whole = part_taken + part_summed
        log_whole = np.log(whole) / power + top
        off_passes, off_steps = log_taken - log_passes, log_whole - log_steps
        one, two = (max(float(np.sqrt(off @ off / count)), 1e-12) for off in (off_passes, off_steps))
        ratios = values[3] / values[2], values[5] / values[4]
        value = one + two + 1e-3 * (power - 1) ** 2 + 1e-2 * (ratios[0] ** 2 + ratios[1] ** 2)
        push_passes, push_steps = off_passes / (count * one), off_steps / (count * two)
        by_taken = push_passes / taken + push_steps * part_taken / whole / taken
        by_summed = push_steps * part_summed / whole / summed
        by_power = (part_taken * log_taken + part_summed * log_summed) / whole - log_whole
        slopes = np.empty(7)
        slopes[0], slopes[1] = by_taken.sum(), by_taken @ local
        slopes[2:6] = columns @ by_summed
        slopes[6] = push_steps @ by_power / power + 2e-3 * (power - 1)
        slopes[2] -= 2e-2 * ratios[0] ** 2 / values[2]
        slopes[3] += 2e-2 * ratios[0] / values[2]
        slopes[4] -= 2e-2 * ratios[1] ** 2 / values[4]
        slopes[5] += 2e-2 * ratios[1] / values[4]
        return value, slopes

    found = fmin_l_bfgs_b(loss, start, bounds=list(zip(low, high, strict=True)))[0].tolist()
    if not several.any():
        found[2], found[3] = max(found[2], 1.1 * found[4]), max(found[3], 1.1 * found[5])
    return StepModel((found[0], found[1]), (found[2], found[3]), (found[4], found[5]), found[6])
