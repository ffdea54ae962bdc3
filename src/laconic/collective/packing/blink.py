"""Blink: trees from one root over the links that a job's GPUs happen to have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laconic.collective.compose import beside, pipeline
from laconic.collective.packing.capacities import integer_rates
from laconic.collective.packing.few_trees import choose_trees
from laconic.collective.packing.flows import Question, max_flows
from laconic.collective.packing.forest import Tree
from laconic.collective.packing.multiplicative import Parents, weigh_trees
from laconic.collective.packing.tree_programs import spread
from laconic.collective.program import COPY, REDUCE, Program, Send
from laconic.collective.relation import all_reduce
from laconic.errors import LaconicError, ProgramError
from laconic.network.graph import Graph
from laconic.registry import technique

ENOUGH = 0.95
"""The share of the best rate for which trees of whole links are taken."""


@dataclass(frozen=True)
class Packing:
    """Trees from one root.

    - `size`: the number of ranks.
    - `trees`: with their rates.
    - `best_bits_per_second`: what the smallest cut between the root and another rank allows.
    """

    size: int
    trees: tuple[Tree, ...]
    best_bits_per_second: float

    @property
    def bits_per_second(self) -> float:
        """The rate of all trees together."""
        return sum(tree.bits_per_second for tree in self.trees)


@technique(
    "blink",
    axis="architecture",
    paper="Wang et al., MLSys 2020",
    why_no_word="It is for a graph of links, of which a strategy knows nothing; `collective(direct)` is its program "
    "for GPUs that a crossbar joins.",
)
def blink(graph: Graph, root: int | None = None) -> Packing:
    """Return trees from a root that share the links between ranks, as few as reach 95 % of the best rate.

    Multiplicative weights give many trees, an integer program chooses few of them. Without a root it is one from which
    the smallest cut is widest, of these the nearest to all ranks. The graph has no switches: behind a crossbar every
    rank is the root of its own share (the program `direct`).
    """
    if graph.nodes > graph.size or graph.size < 2:
        raise LaconicError("trees of Blink join at least two ranks by links without switches")
    capacity, unit = integer_rates(graph)
    chosen, rate = _root(graph, capacity) if root is None else (root, _cut(capacity, root))
    if rate == 0:
        raise LaconicError(f"not all ranks can be reached from rank {chosen}")
    many = weigh_trees(capacity, chosen, rate, (1 + ENOUGH) / 2)
    few = choose_trees(capacity, list(many), rate, ENOUGH)
    trees = tuple(Tree(chosen, _links(parents), weight * unit) for parents, weight in few.items())
    return Packing(graph.size, trees, rate * unit)


def blink_broadcast(packing: Packing, blocks: int = 16) -> Program:
    """Return the broadcast along all trees, each with its share of the vector in blocks."""
    return spread(packing.trees, _shares(packing), packing.size, blocks, "blink_broadcast")


def blink_all_reduce(packing: Packing, blocks: int = 16) -> Program:
    """Return the all-reduce along all trees: sums rise to the root and return, later blocks rising meanwhile.

    Where trees use each link in one direction only, it takes the time of a broadcast, otherwise up to twice as long.
    """
    return machines_all_reduce([packing], blocks, "blink")


def machines_all_reduce(packings: Sequence[Packing], blocks: int = 16, name: str = "blink_machines") -> Program:
    """Return the all-reduce of several machines, whose ranks follow each other: sums rise to each machine's root, the
    roots sum one share of each chunk each, which all others send to it directly, and sums return along the trees.

    Trees of machines have different shares; chunks end wherever those of any machine end.
    """
    starts = np.cumsum([0, *(packing.size for packing in packings)]).tolist()
    owners = len(packings)
    ends = [np.cumsum(_shares(packing)) for packing in packings]
    bounds = np.unique(np.round(np.concatenate([[0.0], *ends]), 12))
    middles = np.repeat((bounds[1:] + bounds[:-1]) / 2, owners)
    shares = np.repeat(np.diff(bounds), owners) / owners
    deepest = max(max(tree.depths().values()) for packing in packings for tree in packing.trees)
    across = 2 if owners > 1 else 0
    roots = [start + packing.trees[0].root for start, packing in zip(starts, packings, strict=False)]
    rows: list[Send] = []
    for chunk, middle in enumerate(middles.tolist()):
        for start, packing, last in zip(starts, packings, ends, strict=False):
            tree = packing.trees[int(np.searchsorted(last[:-1], middle))]
            depths = tree.depths()
            for parent, child in tree.links:
                rows.append((deepest - depths[child], start + child, start + parent, chunk, REDUCE))
                rows.append((deepest + across + depths[parent], start + parent, start + child, chunk, COPY))
        owner = roots[chunk % owners]
        for root in roots:
            if root != owner:
                rows += [(deepest, root, owner, chunk, REDUCE), (deepest + 1, owner, root, chunk, COPY)]
    whole = Program.of(name, all_reduce(starts[-1], len(shares)), rows, shares.tolist())
    return pipeline(whole, blocks)


def over_both(
    fast: Program, slow: Program, fast_seconds: float, slow_seconds: float, setup_seconds: float = 0.0
) -> Program:
    """Return two programs side by side over links of two kinds (NVLink and PCIe) so that both end together.

    - `fast_seconds`, `slow_seconds`: what each takes for the whole vector.
    - `setup_seconds`: what the slow kind needs before it begins; if it needs more than the fast one in all, that is
      all there is.
    """
    if min(fast_seconds, slow_seconds) <= 0 or setup_seconds < 0:
        raise ProgramError("both programs take some time, and a set-up no negative one")
    share = (slow_seconds + setup_seconds) / (fast_seconds + slow_seconds)
    return fast if share >= 1 else beside([fast, slow], [share, 1 - share], f"{fast.name} and {slow.name}")


def _shares(packing: Packing) -> list[float]:
    return [tree.bits_per_second / packing.bits_per_second for tree in packing.trees]


def _links(parents: Parents) -> tuple[tuple[int, int], ...]:
    """Return a tree's links from the root down."""
    reached, links = [parents.index(-1)], []
    for node in reached:
        for child, parent in enumerate(parents):
            if parent == node:
                reached.append(child)
                links.append((parent, child))
    return tuple(links)


def _cut(capacity: np.ndarray, root: int) -> int:
    """Return the smallest of the largest flows from the root to another rank."""
    others = [rank for rank in range(len(capacity)) if rank != root]
    return int(max_flows(capacity, [Question(root, rank) for rank in others], int(capacity[root].sum())).min())


def _root(graph: Graph, capacity: np.ndarray) -> tuple[int, int]:
    rates = [_cut(capacity, rank) for rank in range(graph.size)]
    best = [rank for rank in range(graph.size) if rates[rank] == max(rates)]
    if max(rates) == 0:
        return best[0], 0
    others = np.arange(graph.size)
    far = {rank: int((graph.routes(np.full(graph.size, rank), others).links >= 0).sum(axis=1).max()) for rank in best}
    return min(best, key=lambda rank: far[rank]), max(rates)
