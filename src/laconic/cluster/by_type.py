"""Jobs that proceed at speeds which depend on the type of GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate


@dataclass(frozen=True)
class ByType:
    """A job with a measured speed on each type of GPU; on several types at once it is as fast as on the slowest.

    - `work`: its steps.
    - `speeds`: steps a second of its whole gang, by type.
    """

    work: float
    speeds: Mapping[str, float]

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, beside
        speed = min(self.speeds.get(cluster.hosts[slot.host].gpu, 0.0) * slot.share for slot in grant.slots)
        return Rate(speed, self.work)
