"""A model of data-parallel training that a few measurements determine: computing, and messages by placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate


@dataclass(frozen=True)
class DataParallel:
    """A job of iterations over a fixed batch: computing is split over the workers, and an all-reduce follows, as
    long as a ring takes on the links of one host, or on those between hosts.

    - `work`: iterations.
    - `compute`: seconds of an iteration on one worker.
    - `inside`, `between`: seconds that the parameters take over a link inside a host and between hosts.
    """

    work: float
    compute: float
    inside: float = 0.0
    between: float = 0.0

    def seconds(self, workers: int, hosts: int) -> tuple[float, float]:
        """Return the seconds of an iteration that go to computing and to messages.

        - `workers`, `hosts`: of a placement.
        """
        link = self.inside if hosts == 1 else self.between
        return self.compute / workers, 2 * (workers - 1) / workers * link

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, cluster, beside
        computing, waiting = self.seconds(len(grant.slots), len(grant.by_host))
        computing /= min(slot.share for slot in grant.slots)
        return Rate(1 / (computing + waiting), self.work, waiting / (computing + waiting))


def fit(work: float, measured: Sequence[tuple[int, int, float]]) -> DataParallel:
    """Return the model that is nearest to a light profile, by least squares with constants that are not negative.

    - `work`: iterations of the job.
    - `measured`: workers, hosts and seconds of an iteration, of a few placements.
    """
    from scipy.optimize import nnls

    rows = [
        [1 / workers, *(2 * (workers - 1) / workers * (hosts > 1 if far else hosts == 1) for far in (False, True))]
        for workers, hosts, _ in measured
    ]
    found, _ = nnls(np.array(rows, dtype=float), np.array([seconds for *_, seconds in measured]))
    return DataParallel(work, *(float(x) for x in found))
