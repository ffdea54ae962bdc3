"""Matchings on fast links whose union over a few rounds joins all workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from laconic.topology.matchings import Pair

Rounds = NDArray[np.int64]
"""For each pair of workers, in either order, the round in which they were last matched."""


@dataclass(frozen=True)
class FastMatchings:
    """How pairs are chosen round by round, from 1 on: fast links while recent rounds join all workers, else pairs that
    have not met for long.

    - `edges`: the pairs that can be matched.
    - `fast`: those of them that have a fast link.
    - `recent_rounds`: a pair is recent if it was matched less than so many rounds ago, and has not met for long if that
      is more than so many rounds ago.
    """

    edges: tuple[Pair, ...]
    fast: tuple[Pair, ...]
    recent_rounds: int = 3

    def is_connected(self, last: Rounds, number: int) -> bool:
        """Return whether the pairs matched recently join all workers."""
        import networkx as nx

        graph = nx.Graph((a, b) for a, b in self.edges if number - last[a, b] < self.recent_rounds)
        return len(graph) == len(last) and nx.is_connected(graph)

    def allowed(self, last: Rounds, number: int) -> tuple[Pair, ...]:
        """Return the pairs that a round wants to match."""
        if self.is_connected(last, number):
            return self.fast
        return tuple((a, b) for a, b in self.edges if number - last[a, b] > self.recent_rounds)

    def match(self, last: Rounds, number: int, seed: int) -> tuple[Pair, ...]:
        """Return a round's pairs, drawn at random: of the allowed ones if these can match all workers, else of all."""
        allowed = self.allowed(last, number)
        found = random_matching(allowed, number, seed)
        return found if 2 * len(found) >= len(last) - 1 else random_matching(self.edges, number, seed)


@lru_cache(maxsize=1024)
def random_matching(edges: Sequence[Pair], number: int, seed: int) -> tuple[Pair, ...]:
    """Return as many pairs as can be matched at once, in order, the heaviest by random weights (Edmonds, 1965)."""
    import networkx as nx

    weights = np.random.default_rng((seed, number)).random(len(edges))
    graph = nx.Graph()
    graph.add_weighted_edges_from((a, b, float(w)) for (a, b), w in zip(edges, weights, strict=True))
    return tuple(sorted((min(pair), max(pair)) for pair in nx.max_weight_matching(graph, maxcardinality=True)))
