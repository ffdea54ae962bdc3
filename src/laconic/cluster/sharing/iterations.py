"""A job of many iterations, at whose ends a scheduler may switch to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate
from laconic.cluster.sharing.throughput import Throughput

_ROUNDING = 1e-6  # of an iteration
WHOLE = Throughput.knee(1.0)
"""The profile of a job that uses all of a GPU: half of one takes twice as long."""


@dataclass(frozen=True)
class Iterations:
    """A job of equal iterations; its work is their seconds, alone on a whole GPU.

    - `iterations`: how many.
    - `seconds`: of each.
    - `throughput`: how it slows on a share of a GPU; at 1 it is 1.
    """

    iterations: int
    seconds: float
    throughput: Throughput = WHOLE

    @property
    def work(self) -> float:
        """The seconds of all iterations."""
        return self.iterations * self.seconds

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del cluster, beside
        ahead = math.floor(done / self.seconds + _ROUNDING) + 1
        until = self.work if ahead >= self.iterations else ahead * self.seconds
        return Rate(min(self.throughput.rate(slot.share) for slot in grant.slots), until)
