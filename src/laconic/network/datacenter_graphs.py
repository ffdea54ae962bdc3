"""Networks of data centres as graphs: a switch, fat-trees, tori, BCube and HammingMesh, all links with one rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from laconic.errors import LaconicError
from laconic.network.graph import Graph

Cables = list[tuple[int, int, float]]


def star(size: int, bits_per_second: float, latency_seconds: float = 0.0) -> Graph:
    """Return ranks that are joined by one switch; a message has two links and so twice their latency."""
    return Graph.of(size, [(rank, size, bits_per_second) for rank in range(size)], latency_seconds)


def fat_tree(
    ports: int, bits_per_second: float, latency_seconds: float = 0.0, own_bits_per_second: float | None = None
) -> Graph:
    """Return a fat-tree of switches with so many ports (Al-Fares, Loukissas and Vahdat, SIGCOMM 2008).

    It has `ports` pods of as many switches, half of them at the edge with half of their ports to ranks: ports³/4 ranks
    and 5/4 ports² switches. Any pattern in which no rank sends or receives more than its link carries fits. Ranks' own
    links may have another rate than those between switches.
    """
    if ports < 2 or ports % 2:
        raise LaconicError(f"a fat-tree has switches with an even number of ports, not {ports}")
    half = ports // 2
    ranks, edges = ports * half * half, ports * half
    first_edge, first_middle, first_core = ranks, ranks + edges, ranks + 2 * edges
    own = own_bits_per_second or bits_per_second
    cables: Cables = [(rank, first_edge + rank // half, own) for rank in range(ranks)]
    for pod in range(ports):
        for middle in range(half):
            here = first_middle + pod * half + middle
            cables += [(first_edge + pod * half + edge, here, bits_per_second) for edge in range(half)]
            cables += [(here, first_core + middle * half + core, bits_per_second) for core in range(half)]
    return Graph.of(ranks, cables, latency_seconds)


def torus(sides: Sequence[int], bits_per_second: float | Sequence[float], latency_seconds: float = 0.0) -> Graph:
    """Return ranks on a grid that are joined to their neighbours in every dimension, with links around the ends.

    The first side counts fastest. A side of 2 has two links between its ranks, as one with their sum. The rate is that
    of all links, or one for each dimension.
    """
    size, cables = math.prod(sides), Cables()
    rates = [bits_per_second] * len(sides) if isinstance(bits_per_second, int | float) else bits_per_second
    for rank in range(size):
        for dimension, side in enumerate(sides):
            if side > 1:
                cables.append((rank, _neighbour(rank, sides, dimension, 1), rates[dimension]))
    return Graph.of(size, cables, latency_seconds)


def grid_of_switches(sides: Sequence[int], bits_per_second: Sequence[float], latency_seconds: float = 0.0) -> Graph:
    """Return ranks on a grid with a port in every dimension, on a switch that joins those who differ there alone.

    - `sides`: the ranks in each dimension; the first counts fastest.
    - `bits_per_second`: the rate of the ports in each dimension.
    """
    size, cables = math.prod(sides), Cables()
    first = size
    for dimension, (side, rate) in enumerate(zip(sides, bits_per_second, strict=True)):
        stride = math.prod(sides[:dimension])
        for rank in range(size):
            switch = rank % stride + rank // (stride * side) * stride
            cables.append((rank, first + switch, rate))
        first += size // side
    return Graph.of(size, cables, latency_seconds)


def bcube(ports: int, levels: int, bits_per_second: float, latency_seconds: float = 0.0) -> Graph:
    """Return BCube (Guo et al., SIGCOMM 2009): ports^levels servers with a port in each level, on switches that join
    those whose numbers differ in one digit: levels · ports^(levels-1) of them. Servers pass on what is not theirs."""
    return grid_of_switches([ports] * levels, [bits_per_second] * levels, latency_seconds)


def hamming_mesh(
    board: tuple[int, int], boards: tuple[int, int], bits_per_second: float, latency_seconds: float = 0.0
) -> Graph:
    """Return a HammingMesh (Hoefler et al., SC 2022): boards of ranks in a mesh; every row of ranks has a switch to
    which both ends of the row on each board are joined, and every column likewise.

    - `board`: columns and rows of ranks on a board.
    - `boards`: columns and rows of boards.
    """
    columns, rows = board[0] * boards[0], board[1] * boards[1]
    number = np.arange(columns * rows).reshape(rows, columns)
    cables, switch = Cables(), columns * rows
    for lines, length in ((number, board[0]), (number.T, board[1])):
        for line in lines.tolist():
            for start in range(0, len(line), length):
                part = line[start : start + length]
                cables += [(a, b, bits_per_second) for a, b in pairwise(part)]
                cables += [(end, switch, bits_per_second) for end in (part[0], part[-1])]
            switch += 1
    return Graph.of(columns * rows, cables, latency_seconds)


def _neighbour(rank: int, sides: Sequence[int], dimension: int, away: int) -> int:
    stride = math.prod(sides[:dimension])
    place = rank // stride % sides[dimension]
    return rank + ((place + away) % sides[dimension] - place) * stride
