"""Grids: ranks with several coordinates add up along one dimension after another, on less of the vector each time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from laconic.collective.compose import beside, gather_after_scatter
from laconic.collective.generators import generator
from laconic.collective.program import COPY, REDUCE, Program, Send
from laconic.collective.relation import all_reduce, reduce_scatter
from laconic.errors import ProgramError


def grid_scatter(
    sides: Sequence[int], order: Sequence[int] | None = None, direct: bool = False, direction: int = 1
) -> Program:
    """Return the reduce-scatter over a grid, one dimension after another in this order (the first side's first).

    Rank r has coordinates with the first side counting fastest. In a dimension a rank adds up, of the neighbouring
    chunks that it still has, those of its own coordinate: along a ring in this direction, or in one step with each of
    its neighbours directly. It ends with one chunk, numbered by its coordinates with the first dimension slowest, so
    that all that it sends to another rank in a step lies side by side.
    """
    size = math.prod(sides)
    ranks, strides = np.arange(size), np.cumprod([1, *sides[:-1]])
    places = np.stack(np.unravel_index(ranks, tuple(sides), order="F"))
    tables, begin = [np.empty((0, 5), dtype=np.int64)], 0
    first, left = np.zeros(size, dtype=np.int64), size  # the first of the chunks that a rank still has, and how many
    for dimension in range(len(sides)) if order is None else order:
        side, own = sides[dimension], places[dimension]
        left //= side
        for turn in range(side - 1):
            away, target = (turn + 1, turn + 1) if direct else (direction, -direction * (1 + turn))
            to = ranks + ((own + away) % side - own) * strides[dimension]
            chunks = first + (own + target) % side * left
            tables.append(_sends(begin if direct else begin + turn, ranks, to, chunks, left))
        begin += 1 if direct else side - 1
        first = first + own * left
    relation = replace(reduce_scatter(size, size), after=np.sort(ranks * size + first))
    return Program.of("grid", relation, np.concatenate(tables))


def _sends(
    step: int, ranks: NDArray[np.int64], to: NDArray[np.int64], first: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Return the rows by which each rank sends so many neighbouring chunks to another, to be added."""
    chunks = (first[:, None] + np.arange(count)).ravel()
    ends = [np.repeat(which, count) for which in (ranks, to)]
    return np.stack([np.full(len(chunks), step), *ends, chunks, np.full(len(chunks), REDUCE)], axis=1)


@generator("blueconnect", row="blueconnect", paper="Cho, Finkler, Kung and Hunter, MLSys 2019")
def blueconnect(size: int, inside: int = 1, sides: Sequence[int] = (), order: Sequence[int] = ()) -> Program:
    """Rings in one dimension of the network after another, the innermost first, each on what the last has left.

    Every rank sends 2(p-1)/p of its vector in 2 Σ(p_d - 1) steps. Without `sides` there are two dimensions: inside a
    host and between hosts. `order` names the dimensions in another order; `cheapest_grid` finds the best of both.
    """
    return _by_rings(_sides(size, inside, sides), "blueconnect", order or None)


@generator("hierarchical", row="hierarchical_allreduce", paper="Sergeev and Del Balso, arXiv 1802.05799")
def hierarchical(size: int, inside: int = 1) -> Program:
    """Reduce-scatter inside each host, all-reduce each shard between hosts, all-gather inside the hosts.

    With rings this is BlueConnect's program for two dimensions; the ranks of a host are neighbours.
    """
    return _by_rings(_sides(size, inside, ()), "hierarchical")


@generator("leader", paper="Sergeev and Del Balso, arXiv 1802.05799")
def leader(size: int, inside: int = 1, blocks: int = 1) -> Program:
    """Sum in the first rank of each host along a chain, a ring of these leaders, and chains back.

    A chunk for each host flows through the chains, one after another in so many blocks, so that all links of a host
    are at work.
    """
    hosts, each = _hosts(size, inside), inside
    chunks = hosts * blocks
    rows: list[Send] = []
    up = chunks + each - 2 if each > 1 else 0
    ring = 2 * (hosts - 1)
    for host in range(hosts):
        for place in range(1, each):
            rank = host * each + place
            rows += [(c + each - 1 - place, rank, rank - 1, c, REDUCE) for c in range(chunks)]
            rows += [(up + ring + c + place - 1, rank - 1, rank, c, COPY) for c in range(chunks)]
        after = (host + 1) % hosts * each
        for turn in range(hosts - 1):
            summed, spread = (host - 1 - turn) % hosts * blocks, (host - turn) % hosts * blocks
            rows += [(up + turn, host * each, after, summed + b, REDUCE) for b in range(blocks)]
            rows += [(up + hosts - 1 + turn, host * each, after, spread + b, COPY) for b in range(blocks)]
    return Program.of("leader", all_reduce(size, chunks), rows)


@generator("torus", row="torus2d_allreduce", paper="Mikami et al., arXiv 1811.05233; Ying et al., 2018")
def torus(size: int, sides: Sequence[int] = (), ways: int = 1) -> Program:
    """Rings along the rows and then the columns of a torus, on a row's share: 2(X+Y-2) steps in place of 2(XY-1).

    With `ways=2` half of the vector goes along columns first, so that both dimensions are at work at all times; with
    `ways=4` both directions are, too.
    """
    if ways not in (1, 2, 4):
        raise ProgramError(f"a torus is used in 1, 2 or 4 ways, not {ways}")
    shape = _sides(size, 1, sides or _square(size))
    parts = [((0, 1), 1), ((1, 0), 1), ((0, 1), -1), ((1, 0), -1)][:ways]
    found = [_by_rings(shape, "torus", order, direction) for order, direction in parts]
    return found[0] if ways == 1 else beside(found, [1.0] * ways, "torus")


@generator("bml", row="bml", paper="Wang et al., IEEE/ACM Transactions on Networking 2020")
def bml(size: int, ports: int = 2) -> Program:
    """Gradients on BCube: servers have `ports` ports, each on a switch with the others that share their other digits.

    The vector is cut for as many threads as ports; in each step every thread uses another dimension, in which a server
    sends to all its neighbours directly, so that all ports are equally loaded. It takes 2k steps.
    """
    side = round(size ** (1 / ports))
    if side**ports != size:
        raise ProgramError(f"BCube with {ports} ports a server has n^{ports} servers, not {size}")
    orders = [[(first + turn) % ports for turn in range(ports)] for first in range(ports)]
    threads = [grid_scatter([side] * ports, order, direct=True) for order in orders]
    return gather_after_scatter(beside(threads, [1.0] * ports, "bml"), "bml")


@generator("direct", paper="Wang et al., MLSys 2020 (one-hop trees); the usual all-to-all")
def direct(size: int) -> Program:
    """Every rank sums one chunk that all others send to it at once, and sends it to all: two steps."""
    return gather_after_scatter(grid_scatter([size], direct=True), "direct")


def _by_rings(sides: Sequence[int], name: str, order: Sequence[int] | None = None, direction: int = 1) -> Program:
    """Return the all-reduce by rings along each dimension, there and back in the same direction."""
    there, back = (grid_scatter(sides, order, direction=way) for way in (direction, -direction))
    return gather_after_scatter(there, name, back)


def _hosts(size: int, inside: int) -> int:
    if inside < 1 or size % inside:
        raise ProgramError(f"{size} ranks are no hosts of {inside} each")
    return size // inside


def _sides(size: int, inside: int, sides: Sequence[int]) -> tuple[int, ...]:
    """Return the sides of a grid of so many ranks: those given, or a host's and the number of hosts."""
    found = tuple(sides) or (inside, _hosts(size, inside))
    if math.prod(found) != size:
        raise ProgramError(f"sides of {found} make {math.prod(found)} ranks, not {size}")
    return found


def _square(size: int) -> tuple[int, int]:
    """Return two sides that are as equal as the number of ranks allows."""
    rows = next(r for r in range(math.isqrt(size), 0, -1) if size % r == 0)
    return rows, size // rows
