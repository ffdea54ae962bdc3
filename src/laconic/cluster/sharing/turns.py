"""Gangs of devices on which jobs take turns, as a scheduler keeps them in its memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from laconic.cluster.grant import Grant, Slot
from laconic.cluster.hosts import Cluster
from laconic.cluster.job import Fixed, Job
from laconic.cluster.placement import consolidated
from laconic.cluster.room import Room

Device = tuple[int, int]
Unit = tuple[int, ...]
_NOBODY = Job("nobody", 0.0, 1, Fixed(0.0))


@dataclass
class Group:
    """Devices that one gang fills, and the jobs of such gangs that take turns on them.

    - `devices`: the host and the number of each.
    - `units`: jobs that run together, in the order of their turns: the first has it.
    - `until`: when its turn ends, if others wait.
    """

    devices: tuple[Device, ...]
    units: list[Unit] = field(default_factory=list)
    until: float = -math.inf

    @property
    def gang(self) -> int:
        """How many workers the jobs have."""
        return len(self.devices)

    @property
    def jobs(self) -> list[int]:
        """All jobs."""
        return [job for unit in self.units for job in unit]

    @property
    def hosts(self) -> set[int]:
        """The hosts of its devices."""
        return {host for host, _ in self.devices}


class Servers:
    """Which devices of a cluster belong to which group. A server has the affinity of the first group that took devices
    of it, as long as there is one, and a height: GPUs that jobs demand of it over GPUs that it has.

    - `cluster`: the hosts.
    - `groups`: those that are there.
    - `lost`: hosts that are not.
    """

    def __init__(self, cluster: Cluster, groups: list[Group], lost: Collection[int]) -> None:
        self.cluster, self.groups, self.lost = cluster, groups, lost

    def room(self, hosts: Collection[int] | None = None, without: Iterable[Group] = ()) -> Room:
        """Return what no group has.

        - `hosts`: the hosts that are looked at; default: all.
        - `without`: groups whose devices count as free.
        """
        room, leaving = Room(self.cluster), [id(group) for group in without]
        for group in self.groups:
            if id(group) not in leaving:
                room.take(_NOBODY, grant_of(group.devices))
        for host in range(len(self.cluster.hosts)):
            if host in self.lost or (hosts is not None and host not in hosts):
                room.lose(host)
        return room

    def affinity(self, host: int) -> int:
        """Return the gang that a server is for; 0: none yet.

        - `host`: its number.
        """
        return next((group.gang for group in self.groups if host in group.hosts), 0)

    def height(self, host: int) -> float:
        """Return the GPUs demanded of a server over those that it has.

        - `host`: its number.
        """
        asked = sum(len(group.jobs) for group in self.groups for at, _ in group.devices if at == host)
        return asked / self.cluster.hosts[host].gpus

    def place(self, gang: int, hosts: Collection[int]) -> tuple[Device, ...] | None:
        """Return free devices for a gang: of the lowest server of its affinity; else of an unused one, the smallest
        that is large enough; else of any, on as few as possible. None where there are too few.

        - `gang`: how many devices.
        - `hosts`: the hosts that may be used.
        """
        room = self.room(hosts)
        if room.gpus < gang:
            return None
        fitting = [host for host in sorted(hosts) if room.whole[host] >= gang]
        affine = [host for host in fitting if self.affinity(host) == gang]
        unused = [host for host in fitting if not self.affinity(host)]
        if affine:
            room = self.room({min(affine, key=lambda host: (self.height(host), host))})
        elif unused:
            room = self.room({min(unused, key=lambda host: (self.cluster.hosts[host].gpus, host))})
        grant = consolidated(room, gang)
        return None if grant is None else grant.devices

    def shared(self, gang: int, hosts: Collection[int]) -> Group | None:
        """Return the group that one more job of a gang joins: of the lowest servers, the one with the fewest jobs.

        - `gang`: how many devices.
        - `hosts`: the hosts that may be used.
        """
        there = [group for group in self.groups if group.gang == gang and group.hosts <= set(hosts)]
        return min(
            there,
            key=lambda group: (max(map(self.height, group.hosts)), len(group.jobs), group.devices),
            default=None,
        )


def grant_of(devices: Iterable[Device], share: float = 1.0) -> Grant:
    """Return the grant of a share of each of some devices.

    - `devices`: the host and the number of each.
    - `share`: of each.
    """
    return Grant.of(Slot(*device, share) for device in devices)
