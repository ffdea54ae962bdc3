"""Jobs that report the end of each of their epochs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Progress, Rate


@dataclass(frozen=True)
class InEpochs:
    """A job that proceeds as another, in equal epochs: at the end of each, but the last, policies are told `Advanced`.

    - `inner`: how it proceeds.
    - `epochs`: how many.
    """

    inner: Progress
    epochs: int

    @property
    def work(self) -> float:
        return self.inner.work

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        rate = self.inner.rate(done, grant, cluster, beside)
        epoch = self.work / self.epochs
        number = math.floor(done / epoch + 1e-9) + 1
        return rate._replace(until=min(rate.until, number * epoch) if number < self.epochs else rate.until)
