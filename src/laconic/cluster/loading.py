"""Jobs that load their data before they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate


@dataclass(frozen=True)
class Loading:
    """A job that loads data, for which it needs no GPU, and then computes. Who holds less than half of GPUs on which
    somebody else is comes second there: it loads, and then waits until the other is gone.

    - `load`: the seconds of loading.
    - `seconds`: of computing.
    """

    load: float
    seconds: float

    @property
    def work(self) -> float:
        """The seconds of loading and of computing together."""
        return self.load + self.seconds

    def rate(self, done: float, grant: Grant, cluster: Cluster, beside: Sequence[Job]) -> Rate:
        del cluster
        if done < self.load:
            return Rate(1.0, self.load, communicating=1.0)
        is_second = bool(beside) and min(slot.share for slot in grant.slots) < 0.5
        return Rate(0.0 if is_second else 1.0, self.work)
