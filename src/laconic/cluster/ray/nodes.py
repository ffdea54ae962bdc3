"""Hosts as Ray knows them: a node says by custom resources which host it is and which devices it has."""

from __future__ import annotations

import ray

from laconic.cluster.grant import Slot
from laconic.cluster.hosts import Cluster, Host
from laconic.errors import ClusterError

_PREFIX = "laconic"
_SEAT = 0.001  # of a host, for a process that may be there beside others


def resources(host: Host) -> dict[str, float]:
    """Return the custom resources with which a node is started that is to be a host: itself, and each of its devices.

    - `host`: the host. Its name has no slash in it.
    """
    return {f"{_PREFIX}/{host.name}": 1.0} | {f"{_PREFIX}/{host.name}/{device}": 1.0 for device in range(host.gpus)}


def seat(cluster: Cluster, slot: Slot) -> dict[str, float]:
    """Return what a process on a slot's host takes, which holds no device yet."""
    return {f"{_PREFIX}/{cluster.hosts[slot.host].name}": _SEAT}


def device(cluster: Cluster, slot: Slot) -> dict[str, float]:
    """Return what a slot takes: its share of its device."""
    return {f"{_PREFIX}/{cluster.hosts[slot.host].name}/{slot.device}": slot.share}


def present() -> set[str]:
    """Return the names of the hosts that are there now."""
    return {host for host, _ in _named() if host}


def cluster() -> Cluster:
    """Return the hosts that are there, in the order of their names, by what their nodes say of themselves."""
    counts: dict[str, int] = {}
    for host, device in _named():
        counts[host] = counts.get(host, 0) + (device is not None)
    if not counts:
        raise ClusterError(
            "no node of this Ray cluster says which host it is; start each with the resources of a host and of its "
            'devices, as in ray start --resources=\'{"laconic/a": 1, "laconic/a/0": 1, "laconic/a/1": 1}\''
        )
    return Cluster(tuple(Host(name, counts[name]) for name in sorted(counts)))


def _named() -> list[tuple[str, str | None]]:
    found = list[tuple[str, str | None]]()
    for node in ray.nodes():
        if node["Alive"]:
            for name in node["Resources"]:
                prefix, _, rest = name.partition("/")
                if prefix == _PREFIX:
                    host, slash, device = rest.partition("/")
                    found.append((host, device if slash else None))
    return found
