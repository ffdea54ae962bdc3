"""Jobs whose speed depends on how many workers they have, and the curve that a policy sees of any job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.errors import ClusterError


@dataclass(frozen=True)
class Elastic:
    """A job that proceeds by a curve of its number of workers.

    - `work`: all work.
    - `speeds`: work a second on 1, 2, ... workers; the last holds for more.
    """

    work: float
    speeds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.speeds or min(self.speeds) <= 0:
            raise ClusterError("an elastic job needs a speed above 0 for each number of workers")

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, cluster, beside
        speed = self.speeds[min(len(grant.slots), len(self.speeds)) - 1]
        return Rate(speed * min(slot.share for slot in grant.slots), self.work)


def curve_of(job: Job, cluster: Cluster, done: float = 0.0) -> np.ndarray:
    """Return the speed of a job on 0, 1, ... up to the most workers that it can use and that there are, packed on as
    few hosts as possible; 0 below the fewest that it can do with.

    - `job`: the job, whatever its progress is.
    - `cluster`: whose hosts would be packed, in their order.
    - `done`: the work that is done, where that makes a difference.
    """
    most = min(job.most, cluster.gpus)
    devices = [Slot(h, d) for h, host in enumerate(cluster.hosts) for d in range(host.gpus)][:most]
    found = np.zeros(most + 1)
    for workers in range(job.least, most + 1):
        found[workers] = job.progress.rate(done, Grant(tuple(devices[:workers])), cluster, ()).speed
    return found
