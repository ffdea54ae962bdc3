"""Well-known machines and networks as graphs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from laconic.network.graph import Graph

_DGX1_LINKS = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
}  # fmt: skip
"""How many NVLinks join two GPUs of a DGX-1 with V100s: a hybrid cube mesh with six at each GPU."""


def dgx1(link_bits_per_second: float = 200e9) -> Graph:
    """Return the eight GPUs of a DGX-1 with V100s, joined by one or two NVLinks of this rate in each direction."""
    return Graph.of(8, [(a, b, count * link_bits_per_second) for (a, b), count in _DGX1_LINKS.items()])


def dgx_a100(machines: int = 2, nvlink_bits_per_second: float = 2.4e12, nic_bits_per_second: float = 200e9) -> Graph:
    """Return DGX-A100s: eight GPUs each on the machine's NVSwitch, and each with its own NIC on a switch of them all.

    A machine's GPUs are neighbouring ranks; the switches of the machines come after all ranks, the NICs' comes last.
    """
    ranks = 8 * machines
    inside = [(rank, ranks + rank // 8, nvlink_bits_per_second) for rank in range(ranks)]
    outside = [(rank, ranks + machines, nic_bits_per_second) for rank in range(ranks)] if machines > 1 else []
    return Graph.of(ranks, inside + outside)


def fat_tree(ports: int = 4, bits_per_second: float = 100e9, host_bits_per_second: float | None = None) -> Graph:
    """Return the three layers of switches with so many ports each, for a quarter of the cube of them as hosts.

    Each of as many pods as ports has half as many edge switches, with half as many hosts each, and half as many
    aggregation switches, which share the core switches among them. Hosts of an edge switch are neighbouring ranks;
    edge switches follow the ranks, then aggregation switches, both by pods, then core switches. Hosts' own links may
    have another rate.
    """
    half = ports // 2
    hosts = ports * half * half
    edges, aggregations, cores = hosts, hosts + ports * half, hosts + 2 * ports * half
    own = host_bits_per_second or bits_per_second
    links = [(host, edges + host // half, own) for host in range(hosts)]
    for pod, a, b in itertools.product(range(ports), range(half), range(half)):
        links.append((edges + pod * half + a, aggregations + pod * half + b, bits_per_second))
        links.append((aggregations + pod * half + a, cores + a * half + b, bits_per_second))
    return Graph.of(hosts, links)


def torus(
    sides: Sequence[int], bits_per_second: float | Sequence[float] = 100e9, latency_seconds: float = 0.0
) -> Graph:
    """Return a torus of ranks, the first side counting fastest, with one rate or another for each dimension.

    Where a side is 2, one link joins the two.
    """
    size, rates = math.prod(sides), np.broadcast_to(bits_per_second, len(sides)).tolist()
    places = np.arange(size).reshape(tuple(sides), order="F")
    links = []
    for dimension, rate in enumerate(rates):
        if sides[dimension] == 1:
            continue
        after = np.roll(places, -1, axis=dimension)
        pairs = {(min(a, b), max(a, b)) for a, b in zip(places.ravel().tolist(), after.ravel().tolist(), strict=True)}
        links += [(a, b, float(rate)) for a, b in sorted(pairs)]
    return Graph.of(size, links, latency_seconds)
