"""PLink: all-reduces in two levels over groups of ranks that a probe has found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.collective.compose import relabel
from laconic.collective.direct_links import direct_links
from laconic.collective.grids import hierarchical
from laconic.collective.locality import find_groups
from laconic.collective.price import price
from laconic.collective.probe import Probe, denoised, probe_links, probe_rounds
from laconic.collective.program import Program
from laconic.collective.rings import ring
from laconic.network.graph import Graph
from laconic.registry import technique


@dataclass(frozen=True)
class Plan:
    """An all-reduce for a probed network.

    - `groups`: the group of each rank, of those that explain the probe best.
    - `program`: what to carry out.
    - `seconds`: its time on the network that the probe shows.
    """

    groups: NDArray[np.int64]
    program: Program
    seconds: float


@technique(
    "plink",
    axis="architecture",
    paper="Luo et al., MLSys 2020",
    why_no_word="It plans for a probed network, of which a strategy knows nothing; `collective(hierarchical)` is its "
    "program where ranks of a group are neighbours.",
)
def plan(probe: Probe, nbytes: float) -> Plan:
    """Return the fastest all-reduce of so many bytes in two levels, or in a ring that passes one group after another.

    For all numbers of equal groups the groups are found, and the rates of ranks and of the groups' uplinks are read
    from the probe. Programs for all of them are priced on the network that explains the probe best. Plan again with a
    later probe when links have changed. A rank whose own link has become slow must still send and receive its whole
    vector, so that no plan is faster than that.
    """
    size = probe.size
    groupings = _groupings(probe)
    racks, network = located(probe)
    found = []
    for groups in groupings:
        order = np.argsort(groups, kind="stable").tolist()
        for program in (hierarchical(size, size // (int(groups.max()) + 1)), ring(size)):
            placed = relabel(program, order)
            found.append(Plan(racks, placed, price(placed, nbytes, network).seconds))
    return min(found, key=lambda one: one.seconds)


def located(probe: Probe) -> tuple[NDArray[np.int64], Graph]:
    """Return the groups that explain a probe best, of all numbers of equal groups, and the network that it shows; all
    ranks are one group where links without a switch explain it better."""
    found = [(groups, inferred(probe, groups)) for groups in _groupings(probe)]
    found += [(np.zeros(probe.size, dtype=np.int64), graph) for graph in direct_links(probe)]
    return min(found, key=lambda one: _misfit(probe, one[1]))


def _groupings(probe: Probe) -> list[NDArray[np.int64]]:
    size = probe.size
    return [find_groups(probe.distance(), count) for count in range(1, size + 1) if size % count == 0]


def _misfit(probe: Probe, network: Graph) -> float:
    """Return by what share, on average, probes of this network would differ from those that were made."""
    there = ~np.eye(probe.size, dtype=bool)
    expected = denoised(*probe_links(network)).distance()[there]
    return float(np.abs(np.log(expected / probe.distance()[there])).mean())


def inferred(probe: Probe, groups: NDArray[np.int64]) -> Graph:
    """Return the network that a probe shows for these groups: ranks, a switch for each group, and one for all.

    A rank's link has the best rate that it showed inside its group. A group's uplink has what all its ranks had
    together in the rounds of the probe in which most of them exchanged with other groups.
    """
    size, count = probe.size, int(groups.max()) + 1
    same = (groups[:, None] == groups) & ~np.eye(size, dtype=bool)
    near = same if same.any() else ~same & ~np.eye(size, dtype=bool)
    own = np.where(near, probe.bits_per_second, 0.0).max(axis=1)
    uplinks = np.zeros(count)
    for pairs in probe_rounds(size):
        used = np.zeros(count)
        for a, b in pairs:
            if groups[a] != groups[b]:
                used[[groups[a], groups[b]]] += probe.bits_per_second[a, b]
        uplinks = np.maximum(uplinks, used)
    inside = float(np.median(probe.latency_seconds[near])) / 2
    far = ~same & ~np.eye(size, dtype=bool)
    between = max(float(np.median(probe.latency_seconds[far])) / 2 - inside, 0.0) if far.any() and count > 1 else 0.0
    rates = {(rank, size + int(groups[rank])): float(own[rank]) for rank in range(size)}
    if count > 1:
        rates |= {(size + group, size + count): float(uplinks[group]) for group in range(count)}
    ends = [pair for a, b in rates for pair in ((a, b), (b, a))]
    every = [rate for rate in rates.values() for _ in range(2)]
    latencies = [inside if min(pair) < size else between for pair in ends]
    return Graph(size, np.array(ends), np.array(every), np.array(latencies))
