"""Jobs whose speed depends on the type of GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate


@dataclass(frozen=True)
class ByGpuType:
    """A job that proceeds as fast as the slowest of its GPUs' types allows; it stands still on others.

    - `work`: all work.
    - `speeds`: pairs of a type and the work a second of the gang on it.
    """

    work: float
    speeds: tuple[tuple[str, float], ...]

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del done, beside
        known = dict(self.speeds)
        speed = min(known.get(cluster.hosts[slot.host].gpu, 0.0) * slot.share for slot in grant.slots)
        return Rate(speed, self.work)
