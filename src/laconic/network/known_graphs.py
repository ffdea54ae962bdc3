"""Machines that papers measure on, as graphs of their GPUs."""

from __future__ import annotations

from laconic.network.graph import Graph

_DGX1_TWO_LINKS = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
_DGX1_ONE_LINK = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]


def dgx1(link_bits_per_second: float = 200e9) -> Graph:
    """Return the NVLinks of a DGX-1 with V100s: eight GPUs with six links each, one or two between neighbours.

    - `link_bits_per_second`: the rate of one NVLink in each direction, of which neighbours with two have twice as much.
    """
    links = [(a, b, 2 * link_bits_per_second) for a, b in _DGX1_TWO_LINKS]
    links += [(a, b, link_bits_per_second) for a, b in _DGX1_ONE_LINK]
    return Graph.of(8, links)
