"""Tuning trials, which report their accuracy after each epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate


@dataclass(frozen=True)
class Saturating:
    """A trial whose accuracy rises ever more slowly: best * (1 - exp(-done / scale)).

    - `work`: its GPU seconds.
    - `best`: the accuracy that it would come to.
    - `scale`: the GPU seconds after which it is at 63 % of that.
    - `epoch`: the GPU seconds between two reports.
    """

    work: float
    best: float
    scale: float
    epoch: float

    def accuracy(self, done: float) -> float:
        """Return the accuracy after some work.

        - `done`: the GPU seconds.
        """
        return self.best * -math.expm1(-done / self.scale)

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del cluster, beside
        until = min((math.floor(done / self.epoch + 1e-9) + 1) * self.epoch, self.work)
        return Rate(min(slot.share for slot in grant.slots), until)
