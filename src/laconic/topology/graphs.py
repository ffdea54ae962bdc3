"""Static graphs: ring, exponential, complete, star, and any other by its edges."""

from __future__ import annotations

import re
from dataclasses import dataclass

from laconic.errors import StrategyError
from laconic.literals import shown
from laconic.registry import knob, technique
from laconic.topology.base import Topology
from laconic.topology.mixing import Mixing, adjacency, equal_weights, metropolis, push_weights


@technique("ring", paper="Lian et al., NIPS 2017 (D-PSGD's experiments)")
@dataclass(frozen=True)
class Ring(Topology):
    """A ring with two neighbours each and weights of 1/3: the cheapest connected graph, and the slowest to agree."""

    def lay_out(self, size: int, seed: int) -> Mixing:
        edges = [(i, (i + 1) % size) for i in range(size)]
        degree = int(adjacency(size, edges).sum(axis=1).max())
        return Mixing((equal_weights(size, edges, 1 / (degree + 1)),))


@technique("exponential", paper="Ying et al., NeurIPS 2021 (static exponential graph)")
@dataclass(frozen=True)
class Exponential(Topology):
    """Receive from the workers 1, 2, 4, 8, … places before, with equal weights: few messages, large spectral gap.

    It is directed, and doubly stochastic all the same. For an even number N of workers the gap is 2/(1 + ⌈log2 N⌉).
    """

    def lay_out(self, size: int, seed: int) -> Mixing:
        hops = [2**k for k in range((size - 1).bit_length())]
        return Mixing((push_weights(size, [(i, (i + hop) % size) for i in range(size) for hop in hops]),))


@technique("complete", aliases=["fully_connected"], paper="the plain mean, as a graph")
@dataclass(frozen=True)
class Complete(Topology):
    """All workers are neighbours, with equal weights, so that one step brings full agreement."""

    def lay_out(self, size: int, seed: int) -> Mixing:
        edges = [(i, j) for i in range(size) for j in range(i)]
        return Mixing((equal_weights(size, edges, 1 / size),))


@technique(
    "star",
    paper="Wang and Joshi, JMLR 2021 (elastic averaging as a mixing matrix)",
    holds="the best elastic matrix: α = 2/(m + 2) leaves ζ = m/(m + 2)",
)
@dataclass(frozen=True)
class Star(Topology):
    """A hub, which is the first worker, connected to all others.

    With `cooperative_sgd(auxiliary=1)` the hub is the auxiliary model and this is elastic averaging, whose matrix
    contracts best at weight 2/(N + 1) among N nodes, where the hub's own share is negative.
    """

    weight: float | None = knob(
        None, above=0, below=1, doc="weight of every edge; none: 1/N, as Metropolis–Hastings gives"
    )

    def lay_out(self, size: int, seed: int) -> Mixing:
        weight = 1 / size if self.weight is None else self.weight
        return Mixing((equal_weights(size, [(0, i) for i in range(1, size)], weight),), signed=True)


@technique("edges", aliases=["graph"], paper="Boyd, Diaconis, Xiao, SIAM Review 2004 (Metropolis–Hastings weights)")
@dataclass(frozen=True)
class Edges(Topology):
    """Any graph by its edges: `edges("0-1,1-2,2-0")`, or directed with arrows: `edges("0>1,1>2,2>0,2>1")`.

    Undirected graphs get Metropolis–Hastings weights. With arrows every worker divides its model equally among itself
    and its receivers, which keeps the sum of all models but no consensus: `sgp` can use that, `dpsgd` cannot.
    """

    pairs: str = knob("", doc="pairs such as 0-1,1-2 or 0>1,1>0; empty: a line from the first worker to the last")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parsed()

    def _parsed(self) -> tuple[list[tuple[int, int]], bool]:
        """Return the pairs, and whether they are arrows."""
        parts = [part.strip() for part in self.pairs.split(",")] if self.pairs.strip() else []
        matches = [re.fullmatch(r"(\d+)\s*([->])\s*(\d+)", part) for part in parts]
        wrong = next((part for part, match in zip(parts, matches, strict=True) if match is None), None)
        if wrong is not None:
            raise StrategyError(
                f'{shown(wrong)} is no edge; write two workers, as in edges("0-1,1-2") or edges("0>1,1>0")'
            )
        found = [match.groups() for match in matches if match is not None]
        if len({sign for _, sign, _ in found}) > 1:
            raise StrategyError('edges are all "-" or all ">"; write a link in both directions as 0>1,1>0')
        loop = next((a for a, _, b in found if a == b), None)
        if loop is not None:
            raise StrategyError(f"{loop} has itself as neighbour, which every worker has anyway; leave that edge out")
        return [(int(a), int(b)) for a, _, b in found], any(sign == ">" for _, sign, _ in found)

    def lay_out(self, size: int, seed: int) -> Mixing:
        pairs, directed = self._parsed()
        if not pairs:
            pairs = [(i, i + 1) for i in range(size - 1)]
        highest = max((max(pair) for pair in pairs), default=0)
        if highest >= size:
            raise StrategyError(f"{self.name} names worker {highest}, and there are {size}, from 0 to {size - 1}")
        if directed:
            return Mixing((push_weights(size, pairs),), "column")
        return Mixing((metropolis(size, pairs),))
