"""What running jobs share beside devices, and how fast they are because of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job, Rate


class Running(NamedTuple):
    """A job that computes: what it is, what it holds, and the work that it has done."""

    job: Job
    grant: Grant
    done: float


class Contention(Protocol):
    """How jobs slow each other down by more than shares of the same devices."""

    def rates(self, running: Sequence[Running], cluster: Cluster) -> Sequence[Rate]:
        """Return the rate of each job while all of them run.

        - `running`: all jobs that compute.
        - `cluster`: whose slots they hold.
        """


class OnHosts:
    """Jobs with slots on the same hosts slow each other down, as each one's rate beside the others says."""

    def rates(self, running: Sequence[Running], cluster: Cluster) -> list[Rate]:
        there: dict[int, list[int]] = {}
        for number, (_, grant, _) in enumerate(running):
            for host, _ in grant.by_host:
                there.setdefault(host, []).append(number)
        found = []
        for number, (job, grant, done) in enumerate(running):
            beside = sorted({other for host, _ in grant.by_host for other in there[host] if other != number})
            found.append(job.progress.rate(done, grant, cluster, [running[other].job for other in beside]))
        return found
