"""Programs of trees: each tree has its share of the vector, in blocks that flow along it one after another.

Sends are between ranks. Where a network has several ways between two ranks (the cores of a fat tree), a forest's rate
is met if transfers are spread over its `ways`; a network that takes one way for each pair may be slower.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laconic.collective.compose import pipeline, reverse, spread_after_sum
from laconic.collective.packing.forest import Forest, Tree
from laconic.collective.program import COPY, Program
from laconic.collective.relation import Relation


def forest_all_gather(forest: Forest, blocks: int = 16) -> Program:
    """Return the all-gather of a forest: every rank's block of the vector goes along its trees, by their rates.

    With b blocks and trees of depth d it takes (d + b - 1) / b times the least time, beside latencies.
    """
    shares = [tree.bits_per_second / forest.bits_per_second / forest.size for tree in forest.trees]
    return spread(forest.trees, shares, forest.size, blocks, "forest_all_gather")


def forest_reduce_scatter(forest: Forest, blocks: int = 16) -> Program:
    """Return the reduce-scatter of a forest, its all-gather backwards.

    It sends against the trees' links: where these have other rates back, pack the graph with its links turned round.
    """
    return reverse(forest_all_gather(forest, blocks), "forest_reduce_scatter")


def forest_all_reduce(forest: Forest, blocks: int = 16) -> Program:
    """Return the all-reduce of a forest: its reduce-scatter and then its all-gather."""
    return spread_after_sum(forest_all_gather(forest, blocks), "forest")


def spread(trees: Sequence[Tree], shares: Sequence[float], size: int, blocks: int, name: str) -> Program:
    """Return the all-gather or broadcast in which each tree sends its share of the vector from its root to all ranks.

    All trees begin at the same time; a link d below a root begins d steps later. Shares of neighbouring chunks belong
    to the same root.
    """
    order = sorted(range(len(trees)), key=lambda k: (trees[k].root, k))
    rows = []
    for chunk, k in enumerate(order):
        depths = trees[k].depths()
        rows += [(depths[parent], parent, child, chunk, COPY) for parent, child in trees[k].links]
    chunks = len(order)
    roots = np.array([trees[k].root for k in order])
    kind = "broadcast" if len(set(roots.tolist())) == 1 else "all_gather"
    before = np.sort(roots * chunks + np.arange(chunks))
    relation = Relation(kind, size, chunks, before, np.arange(size * chunks), chunks)
    whole = Program.of(name, relation, rows, [shares[k] for k in order])
    return pipeline(whole, blocks)
