"""A trial of a search: a training that can share a GPU, or use several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.cluster.sharing.iterations import WHOLE
from laconic.cluster.sharing.throughput import Throughput


@dataclass(frozen=True)
class Training:
    """A trial's training; its work is its seconds, alone on a whole GPU.

    - `work`: the seconds.
    - `speeds`: how many times faster it is on 1, 2, ... GPUs; the last holds for more.
    - `throughput`: how it slows on a share of one; at 1 it is 1.
    """

    work: float
    speeds: tuple[float, ...] = (1.0,)
    throughput: Throughput = WHOLE

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, cluster, beside
        several = self.speeds[min(len(grant.slots), len(self.speeds)) - 1]
        return Rate(several * min(self.throughput.rate(slot.share) for slot in grant.slots), self.work)
