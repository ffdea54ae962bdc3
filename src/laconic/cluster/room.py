"""What is free: shares of devices, and what each host has left beside them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from laconic.cluster.compiled import ALMOST, move
from laconic.cluster.grant import Grant
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Job

__all__ = ["ALMOST", "Room"]


class Room:
    """What jobs have not taken. A driver keeps one; a policy tries things out on a `copy`.

    - `cluster`: the hosts, all of which are free at first.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.free = cluster.capacity.copy()  # the share of each device, by host and device
        self.whole = np.array([host.gpus for host in cluster.hosts])  # devices of each host that nobody uses
        self.gpus = cluster.gpus  # all of these
        self.cpu_milli = np.array([host.cpu_milli for host in cluster.hosts])
        self.memory_mib = np.array([host.memory_mib for host in cluster.hosts])
        self.lost: frozenset[int] = frozenset()
        self.there = np.ones(len(cluster.hosts), dtype=np.bool_)  # the hosts that are not lost
        self.ports = {host.rack: cluster.circuit_ports for host in cluster.hosts} if cluster.circuit_ports else {}

    def copy(self) -> Room:
        """Return the same room to try things out on."""
        other = object.__new__(Room)
        other.cluster, other.gpus, other.lost, other.there = self.cluster, self.gpus, self.lost, self.there
        other.free, other.whole = self.free.copy(), self.whole.copy()
        other.cpu_milli, other.memory_mib, other.ports = self.cpu_milli, self.memory_mib, self.ports
        return other

    def only(self, hosts: Collection[int]) -> Room:
        """Return the room of some hosts alone, to try things out on.

        - `hosts`: their numbers.
        """
        part = self.copy()
        for other in range(len(self.cluster.hosts)):
            if other not in hosts:
                part.lose(other)
        return part

    def take(self, job: Job, grant: Grant) -> float:
        """Take what a job is given, and return the least that is left of a device; below 0, it was not free.

        - `job`: the job, whose needs of a host are spread over its slots.
        - `grant`: its slots.
        """
        return self._move(job, grant, -1.0)

    def give(self, job: Job, grant: Grant) -> None:
        """Give back what a job had.

        - `job`: the job.
        - `grant`: its slots.
        """
        self._move(job, grant, 1.0)

    def _move(self, job: Job, grant: Grant, sign: float) -> float:
        more, least = move(self.free, self.whole, self.there, grant.table, sign)
        self.gpus += more
        if grant.circuits:
            self.ports = dict(self.ports)  # a copy has the same as long as nobody changes them
            for rack in (rack for circuit in grant.circuits for rack in circuit):
                self.ports[rack] = self.ports.get(rack, 0) + int(sign)
        if job.cpu_milli or job.memory_mib:
            self.cpu_milli, self.memory_mib = self.cpu_milli.copy(), self.memory_mib.copy()  # as above
            for host, count in grant.by_host:
                part = sign * count / len(grant.slots)
                self.cpu_milli[host] += part * job.cpu_milli
                self.memory_mib[host] += part * job.memory_mib
        found: float = least
        return found

    def lose(self, host: int) -> None:
        """Let a host go; no job is on it any more.

        - `host`: its number.
        """
        self.gpus -= int(self.whole[host])
        self.free[host], self.whole[host] = 0.0, 0
        self._is_lost(self.lost | {host})

    def regain(self, host: int) -> None:
        """Let a host come back, empty.

        - `host`: its number.
        """
        if host in self.lost:
            self._is_lost(self.lost - {host})
            self.free[host], self.whole[host] = self.cluster.capacity[host], self.cluster.hosts[host].gpus
            self.gpus += self.cluster.hosts[host].gpus

    def _is_lost(self, hosts: frozenset[int]) -> None:
        self.lost, self.there = hosts, np.ones(len(self.there), dtype=np.bool_)
        self.there[list(hosts)] = False
