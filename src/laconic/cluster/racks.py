"""Racks of hosts, and the network between them."""

from __future__ import annotations

from collections.abc import Sequence

from laconic.cluster.hosts import Host
from laconic.network.graph import Graph


def racks_of(hosts: Sequence[Host]) -> dict[str, list[int]]:
    """Return the numbers of the hosts of every rack.

    - `hosts`: the hosts, in the order of their numbers.
    """
    found: dict[str, list[int]] = {}
    for number, host in enumerate(hosts):
        found.setdefault(host.rack, []).append(number)
    return found


def tree_of_racks(hosts: Sequence[Host], bits_per_second: float, oversubscribed: float = 1.0) -> Graph:
    """Return the network in which every host has a link to its rack's switch, and every rack one to a core.

    - `hosts`: the hosts, which are its ranks.
    - `bits_per_second`: of a host's link.
    - `oversubscribed`: how many times what its hosts can send a rack cannot send out.
    """
    links, core = [], len(hosts)
    for number, members in enumerate(racks_of(hosts).values()):
        switch = core + 1 + number
        links += [(host, switch, bits_per_second) for host in members]
        links.append((switch, core, len(members) * bits_per_second / oversubscribed))
    return Graph.of(len(hosts), links)
