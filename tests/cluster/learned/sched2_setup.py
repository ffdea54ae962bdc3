"""Parts of Philly with the locality that others measured, and the queues that the learned one is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laconic.cluster.decision import Decision
from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster, Host
from laconic.cluster.job import Job
from laconic.cluster.locality import Spread, speeds_by_hosts
from laconic.cluster.policies.philly import local
from laconic.cluster.policy import Policy
from laconic.cluster.readers.chronus import read_slowdowns
from laconic.cluster.readers.philly import read_philly
from laconic.cluster.replay import Costs, replay
from laconic.cluster.room import ALMOST, Room
from laconic.cluster.state import Event, State
from tests.data import folder_of

CLUSTER = Cluster(tuple(Host(f"r{r}h{h}", 4, rack=str(r)) for r in range(2) for h in range(2)))


def traces(begin: int, end: int, count: int, load: float = 1.1, size: int = 100) -> list[list[Job]]:
    """Windows of consecutive jobs of Philly between two places, at a load of the cluster; who asks for more GPUs than
    a rack has is left out, and each job is one of the models whose slow-down was measured."""
    jobs = read_philly(folder_of("pollux") / "traces" / "philly.csv", least_seconds=60)
    jobs = [job for job in sorted(jobs, key=lambda job: job.arrival) if job.workers <= 8]
    tables = list(read_slowdowns(folder_of("chronus") / "model_info.json").values())
    draws = np.random.default_rng(begin)
    found = []
    for first in np.linspace(begin, min(end, len(jobs)) - size, count).astype(int):
        part = jobs[first : first + size]
        works = [min(job.progress.work, 86400.0) for job in part]
        busy = sum(work * job.workers for work, job in zip(works, part, strict=True)) / CLUSTER.gpus / load
        span = (part[-1].arrival - part[0].arrival) or 1.0
        found.append([
            replace(job, name=f"job{i}", tenant="", arrival=(job.arrival - part[0].arrival) * busy / span,
                    progress=Spread(work, speeds_by_hosts(tables[draws.integers(len(tables))], job.workers, 4)))
            for i, (job, work) in enumerate(zip(part, works, strict=True))
        ])  # fmt: skip
    return found


@dataclass(frozen=True)
class LocalFifo(Policy):
    """First in, first out, with one level of locality for all; at the level 3 the first free GPU of each host in turn,
    without a look at where they are."""

    level: int = 0

    def decide(self, state: State, events: Sequence[Event], memory: None) -> tuple[Decision, None]:
        room, start = state.room.copy(), dict[int, Grant]()
        for job in state.waiting:
            workers = state.jobs[job].workers
            grant = scattered(room, workers) if self.level == 3 else local(room, workers, self.level)
            if grant is None:
                break
            room.take(state.jobs[job], grant)
            start[job] = grant
        return Decision.changing(state.running, start), None


def scattered(room: Room, workers: int) -> Grant | None:
    hosts, devices = np.nonzero(room.free >= ALMOST)
    order = np.lexsort((hosts, devices))[:workers]
    if room.gpus < workers:
        return None
    return Grant.of(Slot(int(hosts[i]), int(devices[i])) for i in order)


__all__ = ["CLUSTER", "Costs", "LocalFifo", "replay", "traces"]
