"""How far GPUs are from each other in a cluster, and halves of them that are near each other."""

from __future__ import annotations

from collections.abc import Sequence

from laconic.cluster.hosts import Cluster

Device = tuple[int, int]
"""A host's number and a GPU's on it."""


def path(cluster: Cluster, device: Device) -> tuple[object, ...]:
    """Return where a GPU is: the rack, the host, and its place at each level of the host's tree.

    - `cluster`: the hosts.
    - `device`: the GPU.
    """
    host, rest = cluster.hosts[device[0]], device[1]
    places = []
    for width in reversed(host.gpu_tree or (host.gpus,)):
        rest, place = divmod(rest, width)
        places.append(place)
    return (host.rack, device[0], *reversed(places))


def distance(cluster: Cluster, one: Device, other: Device) -> float:
    """Return how far two GPUs are from each other: 1 below the same switch, and twice as much for every level above
    it; hosts are above the deepest tree of the cluster, and racks above hosts.

    - `cluster`: the hosts.
    - `one`, `other`: the GPUs.
    """
    if one == other:
        return 0.0
    if one[0] != other[0]:
        same_rack = cluster.hosts[one[0]].rack == cluster.hosts[other[0]].rack
        return float(2 ** (cluster.gpu_levels + (not same_rack)))
    found, a, b = 1.0, one[1], other[1]
    for width in reversed(cluster.hosts[one[0]].gpu_tree):
        a, b = a // width, b // width
        if a == b:
            break
        found *= 2
    return found


def halves(cluster: Cluster, devices: Sequence[Device]) -> tuple[list[Device], list[Device]]:
    """Return the two halves into which the topology splits GPUs: at the highest level on which they differ.

    - `cluster`: the hosts.
    - `devices`: at least two GPUs.
    """
    paths = {device: path(cluster, device) for device in devices}
    level = next(
        level
        for level in range(max(map(len, paths.values())))
        if len({places[level : level + 1] for places in paths.values()}) > 1
    )
    groups: dict[object, list[Device]] = {}
    for device in devices:
        groups.setdefault(paths[device][level], []).append(device)
    parts = list(groups.values())
    middle = len(parts) // 2
    first, second = ([device for part in some for device in part] for some in (parts[:middle], parts[middle:]))
    return first, second
