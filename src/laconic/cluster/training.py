"""The training of a model as others have measured it: what a step takes by placement and batch, and what it is worth.

Steps of a large batch are worth more than steps of the batch for which a model was tuned, but less than in proportion:
how much follows from the noise of its gradients (McCandlish et al., 2018; AdaScale, Johnson et al., ICML 2020).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from laconic.cluster.goodput import Limits
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Rate
from laconic.errors import ClusterError

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

    from laconic.cluster.job import Job

SLACK = 1e-8  # of quotients that are rounded up
MOST_HOSTS = 16  # of measured placements


class Curve(NamedTuple):
    """One training with one batch, after each of its epochs.

    - `progress`: steps of the batch that the model was tuned for that are worth as much as all steps so far.
    - `steps`: the steps that were made.
    - `grad_sqr`, `grad_var`: the squared norm of the mean gradient, and the variance of a gradient of the batch that
      the model was tuned for, during the epoch.
    """

    progress: np.ndarray
    steps: np.ndarray
    grad_sqr: np.ndarray
    grad_var: np.ndarray


class StepTime(NamedTuple):
    """What one step takes, in seconds.

    - `step`: all of it.
    - `sync`: the part of it in which gradients are summed and nothing else is done.
    """

    step: float
    sync: float


class Measured(NamedTuple):
    """What a job can measure of itself while it runs.

    - `hosts`, `workers`: what it runs on.
    - `local`: the samples of a worker's pass.
    - `accumulated`: the passes of a step before the one whose gradients are summed over workers.
    - `seconds`: what a step takes without accumulation.
    - `grad_sqr`, `grad_var`: the norm and the variance of its gradients.
    """

    hosts: int
    workers: int
    local: int
    accumulated: int
    seconds: StepTime
    grad_sqr: float
    grad_var: float


@dataclass(frozen=True, eq=False)
class Application:
    """A model with its data: measured trainings and measured steps.

    - `name`: what it is.
    - `curves`: a training for each of some batches.
    - `placements`: step times by placement, as tables with the columns samples of a worker, step and sync. A placement
      is the workers on each host along the ring, turned so that it is the least of its rotations.
    - `scattered`: step times where the placement itself was not measured: a table with the columns hosts, workers,
      samples of a worker, step and sync, between whose rows is interpolated.
    - `epochs`: after how many it is trained.
    - `least_local`, `most_local`: samples of a worker's pass that are worth their time, and that fit.
    """

    name: str
    curves: Mapping[int, Curve]
    placements: Mapping[tuple[int, ...], np.ndarray]
    scattered: np.ndarray
    epochs: int
    least_local: int
    most_local: int
    _times: dict[tuple[tuple[int, ...], int], StepTime] = field(default_factory=dict, repr=False)
    _speeds: dict[tuple[tuple[int, ...], int], tuple[np.ndarray, float]] = field(default_factory=dict, repr=False)

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """The batches of which trainings were measured."""
        return tuple(sorted(self.curves))

    @property
    def tuned_batch(self) -> int:
        """The batch that the model was tuned for: the smallest."""
        return self.batches[0]

    @property
    def most_batch(self) -> int:
        """The largest batch with which it still learns as well."""
        return self.batches[-1]

    @cached_property
    def ends(self) -> list[float]:
        """The progress at the end of each epoch, by the training that had the least."""
        return [min(float(curve.progress[i]) for curve in self.curves.values()) for i in range(self.epochs)]

    def epoch(self, progress: float) -> int:
        """Return the number of the epoch in which a training is."""
        return bisect_right(self.ends, progress)

    @cached_property
    def limits(self) -> Limits:
        """The batches that it can have."""
        return Limits(self.tuned_batch, self.most_batch, self.least_local, self.most_local)

    def _between(self, batch: int) -> tuple[int, int]:
        """Return the measured batches around a batch, twice the same where it was measured itself."""
        if not self.tuned_batch <= batch <= self.most_batch:
            raise ClusterError(
                f"{self.name} was measured with batches of {self.tuned_batch} to {self.most_batch}, not of {batch}"
            )
        lower = self.batches[bisect_right(self.batches, batch) - 1]
        return lower, lower if lower == batch else self.batches[bisect_right(self.batches, batch)]

    def _interpolated(self, batch: int, column: str) -> np.ndarray:
        lower, upper = self._between(batch)
        low, high = (np.asarray(getattr(self.curves[at], column)) for at in (lower, upper))
        if lower == upper:
            return low
        found: np.ndarray = ((batch - lower) * high + (upper - batch) * low) / (upper - lower)
        return found

    def steps_left(self, batch: int, progress: float) -> float:
        """Return how many steps of a batch are left from the end of the present epoch on; 1 in the last.

        - `batch`: the samples of a step.
        - `progress`: how far the training is.
        """
        steps, epoch = self._interpolated(batch, "steps"), self.epoch(progress)
        return 1.0 if epoch >= self.epochs - 1 else float(steps[self.epochs - 1] - steps[epoch])

    def split(self, batch: int, workers: int) -> tuple[int, int]:
        """Return how each worker makes its part of a batch: the samples of a pass, and how many passes come before the
        one whose gradients are summed. A single worker with a larger batch than the tuned one makes at least two
        passes, since the noise of gradients cannot be measured with one.

        - `batch`: the samples of a step.
        - `workers`: how many share them.
        """
        local = math.ceil(batch / workers - SLACK)
        before = math.ceil(local / self.most_local - SLACK) - 1
        if workers == 1 and batch > self.tuned_batch:
            before = max(1, before)
        each = math.ceil(local / (before + 1) - SLACK)
        return min(each, self.most_batch // (workers * (before + 1))), before

    def step_time(self, placement: tuple[int, ...], local: int) -> StepTime:
        """Return what one step takes without accumulation.

        - `placement`: the workers on each host, in the order of the ring.
        - `local`: the samples of a worker's pass.
        """
        known = self._times.get((placement, local))
        if known is None:
            known = self._times[placement, local] = self._step_time(placement, local)
        return known

    def _step_time(self, placement: tuple[int, ...], local: int) -> StepTime:
        ring = min(placement[i:] + placement[:i] for i in range(len(placement)))
        table = self.placements.get(ring)
        if table is not None:
            inside = table[0, 0] <= local <= table[-1, 0]
            step, sync = (float(np.interp(local, table[:, 0], table[:, i])) for i in (1, 2))
        else:
            step, sync = self._surface([min(len(ring), MOST_HOSTS), sum(ring), local])[0].tolist()
            inside = not math.isnan(step + sync)
        if not inside:
            raise ClusterError(f"{self.name} was not measured with {local} samples a worker on {ring} workers")
        return StepTime(step, sync)

    @cached_property
    def _surface(self) -> LinearNDInterpolator:
        from scipy.interpolate import LinearNDInterpolator

        return LinearNDInterpolator(self.scattered[:, :3], self.scattered[:, 3:])

    def step_seconds(self, placement: tuple[int, ...], batch: int) -> float:
        """Return what a step takes, with all its passes.

        - `placement`: the workers on each host, in the order of the ring.
        - `batch`: the samples of the step.
        """
        local, before = self.split(batch, sum(placement))
        step, sync = self.step_time(placement, local)
        return step + (step - sync) * before

    def speeds(self, placement: tuple[int, ...], batch: int) -> tuple[np.ndarray, float]:
        """Return the progress a second in each epoch, and the share of the time in which workers only communicate.

        - `placement`: the workers on each host, in the order of the ring.
        - `batch`: the samples of a step.
        """
        known = self._speeds.get((placement, batch))
        if known is None:
            workers = sum(placement)
            local, before = self.split(batch, workers)
            whole = workers * local * (before + 1)
            scale = whole / self.tuned_batch
            sqr, var = (self._interpolated(whole, column) for column in ("grad_sqr", "grad_var"))
            seconds = self.step_seconds(placement, batch)
            gains = (var + sqr) / (var / scale + sqr)
            share = min(self.step_time(placement, local).sync / seconds, 1.0)
            known = self._speeds[placement, batch] = gains / seconds, share
        return known

    def measure(self, placement: tuple[int, ...], batch: int, epoch: int) -> Measured:
        """Return what a job that runs so would measure of itself.

        - `placement`: the workers on each host, in the order of the ring.
        - `batch`: the samples of a step.
        - `epoch`: the epoch in which it is.
        """
        workers = sum(placement)
        local, before = self.split(batch, workers)
        whole = workers * local * (before + 1)
        sqr, var = (float(self._interpolated(whole, column)[epoch]) for column in ("grad_sqr", "grad_var"))
        return Measured(len(placement), workers, local, before, self.step_time(placement, local), sqr, var)


@dataclass(frozen=True)
class Training:
    """A job that trains an application to its last epoch. Epochs end at whole seconds, as in the simulator in which the
    measurements were used first.

    - `application`: what is trained.
    - `batch`: the samples of a step, unless a policy gives it another batch.
    - `keeps_batch`: whether it is to be left at that batch.
    """

    application: Application
    batch: int
    keeps_batch: bool = True

    @property
    def work(self) -> float:
        return self.application.ends[-1]

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del cluster, beside
        speeds, communicating = self.application.speeds(ring(grant), grant.batch or self.batch)
        epoch = self.application.epoch(done)
        return Rate(float(speeds[epoch]), self.application.ends[epoch], communicating, rounded=1.0)


def ring(grant: Grant) -> tuple[int, ...]:
    """Return the workers on each host, in the order of the slots."""
    return tuple(count for _, count in grant.by_host)
