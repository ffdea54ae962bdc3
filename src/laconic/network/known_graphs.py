"""Machines that papers measure on, as graphs of their GPUs."""

from __future__ import annotations

import numpy as np

from laconic.errors import LaconicError
from laconic.network.graph import Graph

_DGX1_PAIRS = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
    *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
)
"""The GPUs that NVLink joins in a DGX-1 with V100s, and by how many links: six of each GPU."""


def dgx1(link_bits_per_second: float = 200e9, latency_seconds: float = 0.0) -> Graph:
    """Return the NVLinks of a DGX-1 with V100s: eight GPUs with six links each, one or two between neighbours.

    - `link_bits_per_second`: the rate of one NVLink in each direction, of which neighbours with two have twice as much.
    - `latency_seconds`: of each link.
    """
    links = [(a, b, count * link_bits_per_second) for a, b, count in _DGX1_PAIRS]
    return Graph.of(8, links, latency_seconds)


def dgx_a100(machines: int = 2, nvlink_bits_per_second: float = 2.4e12, nic_bits_per_second: float = 200e9) -> Graph:
    """Return DGX-A100s: eight GPUs each on the machine's NVSwitch, and each with its own NIC on a switch of them all.

    A machine's GPUs are neighbouring ranks; the switches of the machines come after all ranks, the NICs' comes last.
    """
    ranks = 8 * machines
    inside = [(rank, ranks + rank // 8, nvlink_bits_per_second) for rank in range(ranks)]
    outside = [(rank, ranks + machines, nic_bits_per_second) for rank in range(ranks)] if machines > 1 else []
    return Graph.of(ranks, inside + outside)


def switched_hosts(
    hosts: int,
    inside: int,
    nics: int,
    inner_bits_per_second: float = 800e9,
    nic_bits_per_second: float = 100e9,
    inner_latency_seconds: float = 1e-6,
    nic_latency_seconds: float = 5e-6,
) -> Graph:
    """Return equal hosts whose ranks a switch joins, and which a network without a bottleneck joins by their NICs.

    Neighbouring ranks share a NIC where there are fewer NICs than ranks. Latencies are those between two ranks.
    """
    if nics < 1 or inside % nics:
        raise LaconicError(f"{inside} ranks cannot share {nics} NICs equally")
    ranks = hosts * inside
    core = ranks + hosts + hosts * nics
    links: list[tuple[int, int, float, float]] = []
    for rank in range(ranks):
        host, place = divmod(rank, inside)
        nic = ranks + hosts + host * nics + place * nics // inside
        links.append((rank, ranks + host, inner_bits_per_second, inner_latency_seconds / 2))
        links.append((rank, nic, inner_bits_per_second, nic_latency_seconds / 4))
    links += [(nic, core, nic_bits_per_second, nic_latency_seconds / 4) for nic in range(ranks + hosts, core)]
    both = [way for a, b, rate, latency in links for way in ((a, b, rate, latency), (b, a, rate, latency))]
    ends, rates, latencies = ([way[:2] for way in both], [way[2] for way in both], [way[3] for way in both])
    return Graph(ranks, np.asarray(ends), np.asarray(rates), np.asarray(latencies))
