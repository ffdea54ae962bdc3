"""TACCL's first stage: over which ways each chunk goes, without regard to the order on a way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from laconic.collective.relation import Relation
from laconic.collective.synthesis.model import Model
from laconic.collective.synthesis.sketch import Switched
from laconic.collective.synthesis.symmetry import Symmetry, classes
from laconic.collective.synthesis.wiring import Wiring
from laconic.errors import LaconicError

_PREFERENCE = 0.01
"""How much of the time of the longest hop may be given for shorter paths and for the policies of switches."""


@dataclass(frozen=True, eq=False)
class Routes:
    """The tree of each chunk.

    - `sends`: rows (chunk, way), each after the one that brings the chunk to where it starts.
    - `parent`: for each send that one, or -1 where the chunk is there from the beginning.
    - `kind`: the class of each send under the symmetries.
    - `choices`: how many choices the solver had.
    - `is_optimal`: whether the solver proved that no other routes are better by the rules of this stage.
    """

    sends: NDArray[np.int64]
    parent: NDArray[np.int64]
    kind: NDArray[np.int64]
    choices: int
    is_optimal: bool


class RoutingModel:
    """The programme of the first stage: whether a chunk is sent over a way, and the path to each of its goals.

    The time is at least that of each path, with latency and bytes for each hop, and what every link needs for all that
    is sent over it. By TACCL's rule each send over a link has its latency; with `latency_once` a link has one, since
    all may go as one message. The least time of that holds for every schedule, and is the bound.
    """

    def __init__(
        self,
        wiring: Wiring,
        relation: Relation,
        chunk_bytes: float,
        group: Sequence[Symmetry],
        latency_once: bool = False,
    ) -> None:
        self.wiring, self.relation, self._group = wiring, relation, group
        self._seconds = wiring.latency_seconds + chunk_bytes / wiring.rates
        self._unit = float(self._seconds.max(initial=0.0)) or 1.0
        self.model = Model()
        self._number()
        self._time = self.model.variable(0.0, np.inf, cost=1.0)
        self._trees()
        self._paths()
        self._loads(chunk_bytes, latency_once)

    def _number(self) -> None:
        """Number one of each class of choices."""
        relation, wiring, group = self.relation, self.wiring, self._group
        chunks, count, size = relation.chunks, len(wiring.ends), wiring.size
        pairs, places = np.arange(chunks * count), np.arange(chunks * size)
        moved = [g.chunks[pairs // count] * count + g.ways[pairs % count] for g in group]
        self.choice = classes(moved).reshape(chunks, count)
        moved = [g.chunks[places // size] * size + g.ranks[places % size] for g in group]
        self._places = [divmod(place, size) for place in np.unique(classes(moved)).tolist()]
        self._before, self._after = np.zeros((2, chunks, size), dtype=bool)
        self._before[relation.before % chunks, relation.before // chunks] = True
        self._after[relation.after % chunks, relation.after // chunks] = True
        self._sent = {}
        for pair in np.unique(self.choice).tolist():
            chunk, way = divmod(pair, count)
            if not self._before[chunk, wiring.ends[way, 1]]:
                self._sent[pair] = self.model.variable(whole=True)

    def _trees(self) -> None:
        """Each chunk arrives where it must be, and at most once anywhere."""
        for chunk, rank in self._places:
            if not self._before[chunk, rank]:
                inward = [(self._sent[int(self.choice[chunk, way])], 1.0) for way in self.wiring.into[rank]]
                self.model.row(inward, low=float(self._after[chunk, rank]), high=1.0)

    def _paths(self) -> None:
        """To each goal of a chunk leads a path over its sends, which takes no longer than the time."""
        model, ends = self.model, self.wiring.ends.tolist()
        self._hops: list[tuple[int, float]] = []
        for chunk, goal in self._places:
            if not self._after[chunk, goal] or self._before[chunk, goal]:
                continue
            balance: dict[int, list[tuple[int, float]]] = defaultdict(list)
            takes = [(self._time, 1.0)]
            for way, (source, destination) in enumerate(ends):
                sent = self._sent.get(int(self.choice[chunk, way]))
                if sent is None or source == goal:
                    continue
                on = model.variable()
                model.row([(sent, 1.0), (on, -1.0)], low=0.0)
                balance[source].append((on, -1.0))
                balance[destination].append((on, 1.0))
                self._hops.append((on, float(self._seconds[way]) / self._unit))
                takes.append((on, -self._hops[-1][1]))
            model.row(takes, low=0.0)
            for rank, terms in balance.items():
                if not self._before[chunk, rank]:
                    arrives = float(rank == goal)
                    model.row(terms, arrives, arrives)

    def _loads(self, chunk_bytes: float, latency_once: bool) -> None:
        """The time is at least that of each link for what is sent over it."""
        model, wiring = self.model, self.wiring
        self._used: dict[int, int] = {}
        self._kinds = classes([g.ways for g in self._group])
        for way in np.unique(self._kinds).tolist():
            self._used[way] = model.variable()
            for pair in np.unique(self.choice[:, way]).tolist():
                if pair in self._sent:
                    model.row([(self._used[way], 1.0), (self._sent[pair], -1.0)], low=0.0)
        seen = set()
        for members, rate in wiring.limits:
            if frozenset(members.tolist()) in seen:
                continue
            seen |= {frozenset(g.ways[members].tolist()) for g in self._group}
            least = float(wiring.latency_seconds[members].min()) / self._unit
            load: dict[int, float] = defaultdict(float)
            for way in members.tolist():
                own = 0.0 if latency_once or len(members) > 1 else least
                for pair in self.choice[:, way].tolist():
                    if pair in self._sent:
                        load[self._sent[pair]] -= chunk_bytes / rate / self._unit + own
            for way in np.unique(self._kinds[members]).tolist():
                once = least if latency_once or len(members) > 1 else 0.0
                model.row([(self._time, 1.0), *load.items(), (self._used[way], -once)], low=0.0)
        if not latency_once:
            self._way_latencies()

    def _way_latencies(self) -> None:
        """A way has the latency of each of its sends, even where it shares its links."""
        for way in np.unique(self._kinds).tolist():
            takes = float(self._seconds[way]) / self._unit
            sent = [self._sent[pair] for pair in self.choice[:, way].tolist() if pair in self._sent]
            self.model.row([(self._time, 1.0), *((one, -takes) for one in sent)], low=0.0)

    def prefer(self, switches: Sequence[Switched]) -> None:
        """Take, of nearly equally fast routes, those with shorter paths, and more or fewer connections of switches."""
        model = self.model
        for on, takes in self._hops:
            model.cost[on] += 0.2 * _PREFERENCE * takes / len(self._places)
        for switch in switches:
            ranks = set(switch.ranks)
            inside = [way for way, (a, b) in enumerate(self.wiring.ends.tolist()) if a in ranks and b in ranks]
            weight = 0.8 * _PREFERENCE / max(len(inside) * len(switches), 1)
            for way in inside:
                kind = int(self._kinds[way])
                used = self._used[kind]
                model.cost[used] += weight if switch.policy == "uc-min" else -weight
                sent = {self._sent[pair] for pair in self.choice[:, kind].tolist() if pair in self._sent}
                model.row([(used, 1.0), *((one, -1.0) for one in sent)], high=0.0)

    def bound_seconds(self, seconds: float) -> float:
        """Return a time that no solution beats, as far as it is proved in so many seconds."""
        found = self.model.solve(seconds, gap=1e-4)
        return max(found.bound, 0.0) * self._unit

    def solve(self, seconds: float) -> Routes:
        """Return the best routes that are found in so many seconds."""
        found = self.model.solve(seconds, gap=1e-4)
        if found.is_infeasible:
            raise LaconicError("the sketch leaves no routes for this collective")
        if found.values is None:
            raise LaconicError(f"no routes were found in {seconds:.0f} seconds; give more, or a sketch with fewer ways")
        chosen = {pair for pair, sent in self._sent.items() if found.values[sent] > 0.5}
        rows: list[tuple[int, int]] = []
        parents: list[int] = []
        for chunk in range(self.relation.chunks):
            self._grow(chunk, chosen, rows, parents)
        kind = np.array([self.choice[chunk, way] for chunk, way in rows], dtype=np.int64)
        sends = np.asarray(rows, dtype=np.int64).reshape(-1, 2)
        return Routes(sends, np.asarray(parents), kind, self.model.choices, found.is_optimal)

    def _grow(self, chunk: int, chosen: set[int], rows: list[tuple[int, int]], parents: list[int]) -> None:
        """Add the sends of a chunk from where it is, leaving out those that lead nowhere."""
        ways = [way for way in range(len(self.wiring.ends)) if int(self.choice[chunk, way]) in chosen]
        outward: dict[int, list[int]] = {}
        for way in ways:
            outward.setdefault(int(self.wiring.ends[way, 0]), []).append(way)

        def asked_below(rank: int) -> bool:
            below = (int(self.wiring.ends[way, 1]) for way in outward.get(rank, []))
            return bool(self._after[chunk, rank]) or any(asked_below(to) for to in below)

        def add(rank: int, parent: int) -> None:
            for way in outward.get(rank, []):
                to = int(self.wiring.ends[way, 1])
                if asked_below(to):
                    rows.append((chunk, way))
                    parents.append(parent)
                    add(to, len(rows) - 1)

        for rank in np.flatnonzero(self._before[chunk]).tolist():
            add(rank, -1)
