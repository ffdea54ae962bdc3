"""Greedy synthesis over time: step by step each link takes chunks that its end lacks (the idea of TACOS, MICRO 2024).

The network is laid out over steps of equal length, in which a link carries as many chunks as its rate allows. Chunks
that few ranks hold go first. A slow link brings what none of the ranks behind it has that faster links join; what these
would bring in the same time it leaves to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from laconic.collective.compose import reverse, spread_after_sum, then
from laconic.collective.program import COPY, Program, Sends
from laconic.collective.relation import all_gather, all_reduce
from laconic.errors import LaconicError
from laconic.network.graph import Graph

_LEAST_STEPS = 8
_TURNS = 16
"""In how many turns the ranks of a group choose."""


def greedy_all_gather(graph: Graph, chunks: int | None = None, seed: int = 0) -> Program:
    """Return an all-gather on any graph of links between ranks.

    - `graph`: links may have other rates each, and be missing.
    - `chunks`: how many a rank's block is cut into; more use unequal links better. Where none is given, so many that
      the rank that receives slowest does so for at least eight steps.
    - `seed`: of the draws that decide between chunks that equally few ranks hold.
    """
    if graph.nodes > graph.size:
        raise LaconicError("a greedy schedule is for links between ranks; take switches out of the graph first")
    total = graph.size * (_enough_chunks(graph) if chunks is None else chunks)
    rows = _Schedule(graph, total, np.random.default_rng(seed)).run()
    return Program("greedy_all_gather", all_gather(graph.size, total), Sends.of(rows))


def greedy_all_reduce(graph: Graph, chunks: int | None = None, seed: int = 0) -> Program:
    """Return an all-reduce: the all-gather of the graph with its links turned round, backwards, and its all-gather."""
    gather = greedy_all_gather(graph, chunks, seed)
    turned = Graph(graph.size, graph.ends[:, ::-1], graph.bits_per_second, graph.latency_seconds)
    if _rates(turned) == _rates(graph):
        return spread_after_sum(gather, "greedy")
    scatter = reverse(greedy_all_gather(turned, chunks, seed))
    return then(scatter, gather, "greedy", all_reduce(graph.size, gather.chunks))


def _rates(graph: Graph) -> dict[tuple[int, ...], float]:
    return dict(zip(map(tuple, graph.ends.tolist()), graph.bits_per_second.tolist(), strict=True))


@dataclass(frozen=True)
class _Lane:
    """Links that choose at the same time: their ends, which differ, and the group of ranks that faster links join with
    each end. The ranks of a group take turns, so that no two, or few of many, choose the same for their group."""

    sources: NDArray[np.int64]
    ends: NDArray[np.int64]
    groups: NDArray[np.int64]
    level: int  # of the groups, -1 where each rank is its own

    def only(self, ranks: NDArray[np.bool_]) -> _Lane:
        """Return the links that end at these ranks."""
        some = ranks[self.ends]
        return self if some.all() else _Lane(self.sources[some], self.ends[some], self.groups[some], self.level)


class _Schedule:
    def __init__(self, graph: Graph, chunks: int, draw: np.random.Generator) -> None:
        self._size, self._chunks, self._draw = graph.size, chunks, draw
        self._held = np.zeros((graph.size, chunks), dtype=bool)
        self._held.reshape(graph.size, graph.size, -1)[np.arange(graph.size), np.arange(graph.size)] = True
        self._counts = _chunks_per_step(graph.bits_per_second)
        self._levels: list[NDArray[np.int64]] = []  # of each level, the group of every rank
        self._quick: list[NDArray[np.float64]] = []  # of each level, what faster links bring to every rank in a step
        self._lanes = self._make_lanes(graph)
        self._present = [np.zeros((int(groups.max()) + 1, chunks), dtype=bool) for groups in self._levels]
        for present, groups in zip(self._present, self._levels, strict=True):
            np.logical_or.at(present, groups, self._held)
        self._noise = draw.random(4 * chunks, dtype=np.float32)

    def run(self) -> NDArray[np.int64]:
        """Return the sends of all steps."""
        tables, step = [], 0
        while not self._held.all():
            sends = self._step()
            if not len(sends):
                raise LaconicError("some ranks cannot be reached from all others")
            tables.append(np.insert(sends, 0, step, axis=1))
            step += 1
        rows = np.concatenate(tables) if tables else np.empty((0, 4), dtype=np.int64)
        return np.column_stack([rows, np.full(len(rows), COPY)])

    def _step(self) -> NDArray[np.int64]:
        """Let every link choose, of what its source held before, and return (source, destination, chunk)."""
        rarity = self._held.sum(axis=0).astype(np.float32)
        before, lacking, found = self._held.copy(), ~self._held, [np.empty((0, 3), dtype=np.int64)]
        needy = lacking.any(axis=1)
        for number in self._draw.permutation(len(self._lanes)).tolist():
            lane = self._lanes[number].only(needy)
            if not len(lane.ends):
                continue
            open_chunks = before[lane.sources] & lacking[lane.ends]
            score = np.where(open_chunks, rarity + self._fresh_noise(len(lane.ends)), np.float32(np.inf))
            if lane.level >= 0:
                there = self._present[lane.level][lane.groups]
                score += np.where(there, np.float32(2 * self._size), np.float32(0))
                soon = (there & lacking[lane.ends]).sum(axis=1) <= self._quick[lane.level][lane.ends]
                score[there & soon[:, None]] = np.inf
            choice = score.argmin(axis=1)
            sent = np.isfinite(score[np.arange(len(choice)), choice])
            source, end, chunk = lane.sources[sent], lane.ends[sent], choice[sent]
            lacking[end, chunk] = False
            self._held[end, chunk] = True
            for present, groups in zip(self._present, self._levels, strict=True):
                present[groups[end], chunk] = True
            found.append(np.column_stack([source, end, chunk]))
        return np.concatenate(found)

    def _fresh_noise(self, rows: int) -> NDArray[np.float32]:
        """Return numbers below one that differ from rank to rank and from step to step."""
        starts = self._draw.integers(0, 3 * self._chunks, rows)
        return np.lib.stride_tricks.sliding_window_view(self._noise, self._chunks)[starts]

    def _make_lanes(self, graph: Graph) -> list[_Lane]:
        """Return the links in lanes, by octaves of their rates, each as often as it carries chunks in a step."""
        ends, octaves = graph.ends, np.floor(np.log2(graph.bits_per_second / graph.bits_per_second.min()) + 1e-9)
        lanes: list[_Lane] = []
        for octave in np.unique(octaves):
            level, groups = self._level(graph, octaves > octave)
            links = np.repeat(np.flatnonzero(octaves == octave), self._counts[octaves == octave])
            places = _among_equals(groups) // -(-np.bincount(groups)[groups] // _TURNS)
            turns = _among_equals(ends[links, 1]) * self._size + places[ends[links, 1]]
            for turn in np.unique(turns):
                some = links[turns == turn]
                lanes.append(_Lane(ends[some, 0], ends[some, 1], groups[ends[some, 1]], level))
        return lanes

    def _level(self, graph: Graph, faster: NDArray[np.bool_]) -> tuple[int, NDArray[np.int64]]:
        """Return the number of a level, and the groups that its faster links join."""
        joined = csr_array(
            (np.ones(int(faster.sum())), (graph.ends[faster, 0], graph.ends[faster, 1])), (self._size, self._size)
        )
        count, groups = connected_components(joined, connection="strong")
        if count == self._size:
            return -1, np.arange(self._size)
        self._levels.append(groups.astype(np.int64))
        self._quick.append(np.bincount(graph.ends[faster, 1], self._counts[faster], self._size).astype(float))
        return len(self._levels) - 1, self._levels[-1]


def _among_equals(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return of each value how many equal ones stand before it."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values), dtype=np.int64)
    found[order] = np.arange(len(values)) - np.searchsorted(values[order], values[order])
    return found


def _enough_chunks(graph: Graph) -> int:
    entering = np.bincount(graph.ends[:, 1], _chunks_per_step(graph.bits_per_second), minlength=graph.size)
    return math.ceil(_LEAST_STEPS * max(float(entering.min()), 1.0) / max(graph.size - 1, 1))


def _chunks_per_step(rates: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many chunks each link carries in a step: the slowest so few that no link wastes a tenth of its rate,
    if four are enough for that."""
    wasted = {}
    for least in range(1, 5):
        carried = least * rates / rates.min()
        wasted[least] = float((1 - np.floor(carried * (1 + 1e-9)) / carried).max())
    best = next((least for least in wasted if wasted[least] <= 0.1), min(wasted, key=lambda least: wasted[least]))
    return np.asarray(np.floor(best * rates / rates.min() * (1 + 1e-9)), dtype=np.int64)
