"""Spanning trees from given roots that share the links of a graph: Edmonds' branchings, grown many at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from laconic.collective.packing.capacities import Matrix
from laconic.collective.packing.flows import Question, max_flows
from laconic.errors import LaconicError

_AT_ONCE = 12
"""How many links are asked for at once whether trees may grow along them."""


@dataclass(frozen=True)
class Growing:
    """So many equal trees, as far as they have grown: their links in order, which reach a set of nodes."""

    count: int
    root: int
    links: tuple[tuple[int, int], ...] = ()

    @property
    def reached(self) -> frozenset[int]:
        """The nodes that the trees span so far."""
        return frozenset([self.root, *(child for _, child in self.links)])

    def depths(self) -> dict[int, int]:
        """Return how far each node is from the root."""
        found = {self.root: 0}
        for parent, child in self.links:
            found[child] = found[parent] + 1
        return found


def pack_arborescences(capacity: Matrix, roots: Mapping[int, int]) -> list[Growing]:
    """Return so many spanning trees from each root, which together use no link more often than its capacity.

    Trees grow by one link at a time. A link may be given to so many of them that every set of nodes still has a link
    for each tree that does not reach it yet, which one maximum flow tells (Bérczi and Frank, 2010); then they can
    always be finished. Links near the root come first.
    """
    left, size = capacity.copy(), len(capacity)
    open_trees = [Growing(count, root) for root, count in sorted(roots.items()) if count]
    done: list[Growing] = []
    while open_trees:
        trees, others = open_trees[-1], open_trees[:-1]
        if len(trees.reached) == size:
            done.append(open_trees.pop())
            continue
        (parent, child), amount = _next_link(left, trees, others)
        left[parent, child] -= amount
        open_trees.pop()
        if amount < trees.count:
            open_trees.append(replace(trees, count=trees.count - amount))
        open_trees.append(replace(trees, count=amount, links=(*trees.links, (parent, child))))
    return done


def _next_link(left: Matrix, trees: Growing, others: list[Growing]) -> tuple[tuple[int, int], int]:
    """Return a link along which some of the trees can grow, and how many: all of them if that is so near the root."""
    depths = trees.depths()
    links = [
        (depth, -int(left[node, to]), node, to)
        for node, depth in depths.items()
        for to in np.flatnonzero(left[node]).tolist()
        if to not in depths
    ]
    links.sort()
    for at in range(0, len(links), _AT_ONCE):
        some = [(node, to) for _, _, node, to in links[at : at + _AT_ONCE]]
        amounts = _growable(left, trees, others, some)
        best = int(amounts.argmax())
        if amounts[best]:
            return some[best], int(amounts[best])
    raise LaconicError(f"the links do not allow as many trees from root {trees.root}")


def _growable(left: Matrix, trees: Growing, others: list[Growing], links: list[tuple[int, int]]) -> np.ndarray:
    """Return how many of the trees may grow along each link."""
    size, needed = len(left), sum(other.count for other in others)
    graph = np.pad(left, (0, 2 * len(others)))
    reaching: list[tuple[int, int]] = []
    for k, other in enumerate(others):
        graph[size + 2 * k, size + 2 * k + 1] = other.count
        reaching += [(size + 2 * k + 1, node) for node in sorted(other.reached)]
    questions = [
        Question(node, to, (*reaching, *((node, size + 2 * k) for k in range(len(others))))) for node, to in links
    ]
    room = max_flows(graph, questions, needed + trees.count) - needed
    return np.minimum(room, [min(trees.count, int(left[link])) for link in links])
