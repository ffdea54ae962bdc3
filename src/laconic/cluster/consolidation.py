"""Gangs on fewer hosts: how much a job suffers where it is spread, and exchanges of GPUs that avoid it."""

from __future__ import annotations

from collections.abc import Mapping

from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job


def packed(cluster: Cluster, workers: int, spread: bool = False) -> Grant:
    """Return whole devices of an empty cluster, host by host or by turns.

    - `cluster`: the hosts.
    - `workers`: how many devices.
    - `spread`: whether each host gives one before any gives two.
    """
    devices = [(d, h) if spread else (h, d) for h, host in enumerate(cluster.hosts) for d in range(host.gpus)]
    chosen = sorted(devices)[:workers]
    return Grant.of(Slot(h, d) for d, h in chosen) if spread else Grant.of(Slot(h, d) for h, d in chosen)


def sensitivity(job: Job, cluster: Cluster) -> float:
    """Return the part of its speed that a job loses where its workers are on as many hosts as there are.

    - `job`: the job.
    - `cluster`: where it would be.
    """
    together, apart = (
        job.progress.rate(0.0, packed(cluster, job.workers, spread), cluster, ()).speed for spread in (False, True)
    )
    return max(1.0 - apart / together, 0.0)


def exchanged(grants: Mapping[int, Grant], weights: Mapping[int, float]) -> dict[int, Grant]:
    """Return grants of the same devices by which the sum of hosts, each job's times its weight, is as small as
    exchanges of two jobs make it: all that a job has on one of its hosts for as much that another has on another.

    - `grants`: jobs that may be exchanged, since they start now; whole devices.
    - `weights`: how much it counts that a job is on few hosts.
    """
    found = dict(grants)
    while (better := _exchange(found, weights)) is not None:
        found |= better
    return found


def _exchange(grants: Mapping[int, Grant], weights: Mapping[int, float]) -> dict[int, Grant] | None:
    """Return two jobs' grants after an exchange that is worth while, or None."""

    def cost(job: int, grant: Grant) -> float:
        return weights[job] * len(grant.by_host)

    for one, grant in sorted(grants.items(), key=lambda pair: (-weights[pair[0]], pair[0])):
        if len(grant.by_host) == 1 or not weights[one]:
            continue
        for away, count in sorted(grant.by_host, key=lambda pair: (pair[1], pair[0])):
            for other, theirs in grants.items():
                for to, have in theirs.by_host:
                    if other == one or have < count or to == away or to not in dict(grant.by_host):
                        continue
                    mine, yours = swapped(grant, theirs, away, to, count)
                    if cost(one, mine) + cost(other, yours) < cost(one, grant) + cost(other, theirs) - 1e-12:
                        return {one: mine, other: yours}
    return None


def swapped(one: Grant, other: Grant, away: int, to: int, count: int) -> tuple[Grant, Grant]:
    """Return two grants after some devices were exchanged.

    - `one`, `other`: the grants.
    - `away`: the host of which the first gives devices.
    - `to`: the host of which the second does.
    - `count`: how many.
    """
    gives = [slot for slot in one.slots if slot.host == away][:count]
    takes = [slot for slot in other.slots if slot.host == to][:count]
    return (
        Grant.of([*(slot for slot in one.slots if slot not in gives), *takes]),
        Grant.of([*(slot for slot in other.slots if slot not in takes), *gives]),
    )
