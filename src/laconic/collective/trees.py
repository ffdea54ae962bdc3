"""Trees: sums rise to a root and are spread from it, in as many steps as the tree is deep."""

from __future__ import annotations

import math
from collections.abc import Sequence

from laconic.collective.compose import beside, reverse, spread_after_sum, spread_while_summing, then
from laconic.collective.generators import generator
from laconic.collective.ports import one_port
from laconic.collective.program import COPY, Program
from laconic.collective.relation import broadcast, reduce, scatter
from laconic.collective.rings import ring_gather, ring_reduce_scatter
from laconic.errors import ProgramError

Parents = Sequence[int]
"""The parent of each rank in a tree; the root's is -1."""


@generator("binomial", row="tree_allreduce", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def binomial(size: int) -> Program:
    """A binomial tree of the whole vector: sums rise to rank 0 in ceil(log2 p) steps and are spread in as many.

    It has 2(p-1) messages in all: the fewest steps for small vectors, at log2(p) times a vector's bytes.
    """
    return spread_after_sum(binomial_spread(size), "binomial")


@generator("binomial_broadcast", relation="broadcast", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def binomial_spread(size: int) -> Program:
    """A binomial tree from rank 0: in each step all ranks that have the vector send it to one that has not."""
    depth = (size - 1).bit_length()
    rows = [
        (step, rank, rank + 2 ** (depth - 1 - step), 0, COPY)
        for step in range(depth)
        for rank in range(0, size, 2 ** (depth - step))
        if rank + 2 ** (depth - 1 - step) < size
    ]
    return Program.of("binomial_broadcast", broadcast(size, 1), rows)


@generator("binomial_reduce", relation="reduce", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def binomial_reduce(size: int) -> Program:
    """A binomial tree to rank 0: the broadcast's backwards."""
    return reverse(binomial_spread(size), "binomial_reduce")


@generator("binomial_scatter", relation="scatter", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def binomial_scatter(size: int) -> Program:
    """A binomial tree from rank 0: in each step a rank sends the blocks of the upper half of its part to the first
    rank there, so that each block travels once along the tree."""
    depth = (size - 1).bit_length()
    rows = [
        (step, rank, rank + half, block, COPY)
        for step in range(depth)
        for half in [2 ** (depth - 1 - step)]
        for rank in range(0, size - half, 2 * half)
        for block in range(rank + half, min(rank + 2 * half, size))
    ]
    return Program.of("binomial_scatter", scatter(size, size), rows)


@generator("binomial_gather", relation="gather", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def binomial_gather(size: int) -> Program:
    """A binomial tree to rank 0: the scatter's backwards."""
    return reverse(binomial_scatter(size), "binomial_gather")


@generator("direct_scatter", relation="scatter", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def direct_scatter(size: int) -> Program:
    """Rank 0 sends every rank its block, all at once: the fewest bytes, and a message for each rank."""
    return Program.of("direct_scatter", scatter(size, size), [(0, 0, rank, rank, COPY) for rank in range(1, size)])


@generator("direct_gather", relation="gather", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def direct_gather(size: int) -> Program:
    """Every rank sends its block to rank 0, all at once: the scatter's backwards."""
    return reverse(direct_scatter(size), "direct_gather")


@generator("scatter_gather_broadcast", relation="broadcast", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def scatter_gather_broadcast(size: int) -> Program:
    """Blocks are scattered along a binomial tree and gathered by a ring: for large vectors twice the least bytes,
    whatever the number of ranks."""
    both = broadcast(size, size)
    return then(binomial_scatter(size), ring_gather(size), "scatter_gather_broadcast", both)


@generator("scatter_gather_reduce", relation="reduce", paper="Rabenseifner, ICCS 2004")
def scatter_gather_reduce(size: int) -> Program:
    """Blocks are summed by a ring and their sums gathered along a binomial tree, for large vectors."""
    sums = reduce(size, size)
    return then(ring_reduce_scatter(size), binomial_gather(size), "scatter_gather_reduce", sums)


@generator("binary_tree", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005; Sanders, Speck and Träff, 2009")
def binary_tree(size: int, blocks: int = 8) -> Program:
    """A binary tree through which blocks of the vector flow one after another, up and then down.

    No rank sends or receives two blocks in a step. Since half of the ranks are leaves, which only send while sums rise,
    it takes twice the time of the best for large vectors.
    """
    return spread_after_sum(pipelined(first_tree(size), blocks, "binary_tree"), "binary_tree")


@generator("chain", paper="Thakur, Rabenseifner and Gropp, IJHPCA 2005")
def chain(size: int, blocks: int = 8) -> Program:
    """A tree in which every rank has one child: blocks flow along all ranks to rank 0, and back while others come.

    With many blocks the last rank sends and receives little more than one vector, both at the same time: the least
    there is for a rank whose link is slow, where a ring takes 2(p-1)/p of a vector each way.
    """
    return spread_while_summing(pipelined(range(-1, size - 1), blocks, "chain"), "chain")


@generator("double_tree", row="double_binary_tree_allreduce", paper="Sanders, Speck and Träff, 2009")
def double_tree(size: int, blocks: int = 8) -> Program:
    """Two binary trees, each for half of the vector: a rank that has children in one is a leaf of the other.

    So all ranks send and receive at all times, with a depth of log2(p). The trees are those that NCCL uses.
    """
    trees = [pipelined(parents, blocks, "tree") for parents in (first_tree(size), second_tree(size))]
    both = one_port(beside(trees, [1.0, 1.0], "double_tree"))
    return spread_after_sum(both, "double_tree")


@generator("nccl_tree", paper="NVIDIA NCCL 2.4; Jeaugey, 2019")
def nccl_tree(size: int, inside: int = 1, blocks: int = 8) -> Program:
    """Two binary trees over hosts, with a chain through the ranks of each host that begins at its first: NCCL's trees.

    Between hosts only first ranks send, so that latency grows with the logarithm of the number of hosts.
    """
    if inside < 1 or size % inside:
        raise ProgramError(f"{size} ranks are no hosts of {inside} each")
    trees = []
    for of_hosts in (first_tree(size // inside), second_tree(size // inside)):
        above = [inside * of_hosts[rank // inside] if of_hosts[rank // inside] >= 0 else -1 for rank in range(size)]
        parents = [rank - 1 if rank % inside else above[rank] for rank in range(size)]
        trees.append(pipelined(parents, blocks, "tree"))
    return spread_after_sum(one_port(beside(trees, [1.0, 1.0], "nccl_tree")), "nccl_tree")


def best_blocks(size: int, nbytes: float, latency_seconds: float, seconds_per_byte: float, trees: int = 2) -> int:
    """Return into how many blocks to cut each tree's vector, where a block of b bytes takes
    `latency_seconds + b * seconds_per_byte` and so many trees share the vector: √(h S β / (trees α)), h = log2 p."""
    depth = (size - 1).bit_length()
    if not latency_seconds:
        raise ProgramError("without latency there is no best number of blocks: more are always better")
    return max(1, round(math.sqrt(depth * nbytes * seconds_per_byte / (trees * latency_seconds))))


def pipelined(parents: Parents, blocks: int, name: str) -> Program:
    """Return a broadcast from the root of a tree in blocks, one sent and one received at a time."""
    size, root = len(parents), list(parents).index(-1)
    order = downwards(parents)
    rows = [
        (block * size + place, parents[child], child, block, COPY)
        for block in range(blocks)
        for place, child in enumerate(order[1:])
    ]
    return one_port(Program.of(name, broadcast(size, blocks, root), rows))


def downwards(parents: Parents) -> list[int]:
    """Return the ranks of a tree from the root down, those of a level together."""
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(parents):
        children.setdefault(parent, []).append(child)
    order = [*children[-1]]
    for rank in order:
        order += children.get(rank, [])
    return order


def first_tree(size: int) -> list[int]:
    """Return the parents in a balanced tree: rank 0 is the root and has one child, odd ranks are leaves."""

    def parent(rank: int) -> int:
        low = rank & -rank
        up = (rank ^ low) | (2 * low)
        return up if up < size else rank ^ low

    return [-1, *(parent(rank) for rank in range(1, size))]


def second_tree(size: int) -> list[int]:
    """Return the parents in the other tree: the first one mirrored, or shifted by one where the number is odd."""
    first = first_tree(size)
    if size % 2 == 0:
        return [size - 1 - first[size - 1 - rank] if first[size - 1 - rank] >= 0 else -1 for rank in range(size)]
    return [(first[(rank - 1) % size] + 1) % size if first[(rank - 1) % size] >= 0 else -1 for rank in range(size)]
