"""Which neighbouring tensors are sparsified and sent together: plans from a profile, as plain values.

Tensors are numbered in the order of the forward pass; backward makes the last one's gradient first. A plan is groups of
numbers in the order in which they are sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from laconic.errors import LaconicError
from laconic.registry import technique

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SparseCosts:
    """Seconds: selecting among x values takes `select`·x·log2 x, gathering the selected ones twice a message, of values
    and of places, with `alpha` before its first byte and `beta` for each."""

    workers: int
    alpha: float
    beta: float
    select: float
    density: float = 0.001
    bytes_each: int = 4

    def selecting(self, elements: int) -> float:
        return self.select * elements * math.log2(elements) if elements > 1 else 0.0

    def sending(self, elements: int) -> float:
        return 2 * (self.alpha + self.beta * self.bytes_each * self.workers * elements * self.density)


@dataclass(frozen=True)
class Timeline:
    """When each group's selection is over and when its message starts and ends, from the start of backward."""

    selected: tuple[float, ...]
    starts: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def finish(self) -> float:
        return self.ends[-1]

    @property
    def not_hidden(self) -> float:
        """Communication after all computation is over."""
        return self.ends[-1] - self.selected[-1]


def timeline(groups: Groups, sizes: Sequence[int], backward: Sequence[float], costs: SparseCosts) -> Timeline:
    """Selection stops backward; messages leave one after another."""
    now, free = 0.0, 0.0
    selected, starts, ends = [], [], []
    for group in groups:
        elements = sum(sizes[i] for i in group)
        now += sum(backward[i] for i in group) + costs.selecting(elements)
        start = max(now, free)
        free = start + costs.sending(elements)
        selected.append(now)
        starts.append(start)
        ends.append(free)
    return Timeline(tuple(selected), tuple(starts), tuple(ends))


@technique(
    "omgs_sgd",
    axis="schedule",
    paper="Shi, Wang, Chu, Li, Qin, Liu, Zhao, INFOCOM 2020",
    evidence="fixture",
    reproduces="omgs_sgd.json: groups and exposed time, ten cases",
)
def greedy(sizes: Sequence[int], backward: Sequence[float], costs: SparseCosts) -> Groups:
    """Merge a tensor with the next where waiting for it adds less than the start-up saves; for layer-wise topk+ef.

    From the last tensor to the first; the timeline is made anew after each merge. Each group is one buffer with one
    selection and one message. Reading chosen: the published program's rule; `exact` finds the best plan of
    the same model, which this one need not.
    """
    check(sizes, backward)
    groups: list[tuple[int, ...]] = [(i,) for i in reversed(range(len(sizes)))]
    place = 0
    while place + 1 < len(groups):
        own, following = groups[place], groups[place + 1]
        times = timeline(tuple(groups), sizes, backward, costs)
        if _waits(own, following, times, place, sizes, backward, costs) < _saves(own, following, sizes, costs):
            groups[place : place + 2] = [own + following]
        else:
            place += 1
    return tuple(groups)


def _waits(
    own: tuple[int, ...],
    following: tuple[int, ...],
    times: Timeline,
    place: int,
    sizes: Sequence[int],
    backward: Sequence[float],
    costs: SparseCosts,
) -> float:
    """How much later the first's message leaves, beyond its own waiting for the network."""
    p, q = (sum(sizes[i] for i in group) for group in (own, following))
    more = costs.selecting(p + q) - costs.selecting(p) - costs.selecting(q)
    return sum(backward[i] for i in following) + more - (times.starts[place] - times.selected[place])


def _saves(own: tuple[int, ...], following: tuple[int, ...], sizes: Sequence[int], costs: SparseCosts) -> float:
    p, q = (sum(sizes[i] for i in group) for group in (own, following))
    return costs.sending(p) + costs.sending(q) - costs.sending(p + q)


def exact(sizes: Sequence[int], backward: Sequence[float], costs: SparseCosts) -> Groups:
    """The plan of neighbours that is finished first: of all ways to come to a tensor, those are kept that no other
    beats in both computation and network."""
    check(sizes, backward)
    order = tuple(reversed(range(len(sizes))))
    elements = list(accumulate((sizes[i] for i in order), initial=0))
    computing = list(accumulate((backward[i] for i in order), initial=0.0))
    ways = [[_Way(0.0, 0.0)]]
    for end in range(1, len(order) + 1):
        found = []
        for begin, before in enumerate(ways):
            taken = elements[end] - elements[begin]
            busy, sending = computing[end] - computing[begin] + costs.selecting(taken), costs.sending(taken)
            found += [(w.ready + busy, max(w.ready + busy, w.free) + sending, begin, i) for i, w in enumerate(before)]
        ways.append(_undominated(found, ways))
    way: _Way | None = min(ways[-1], key=lambda way: way.free)
    groups: list[tuple[int, ...]] = []
    end = len(order)
    while way is not None and way.before is not None:
        groups.append(order[way.begin : end])
        way, end = way.before, way.begin
    return tuple(reversed(groups))


@dataclass(frozen=True)
class _Way:
    """To have come to some tensor: computation is ready, the network free; its last group began with one."""

    ready: float
    free: float
    begin: int = 0
    before: _Way | None = None


def _undominated(found: list[tuple[float, float, int, int]], ways: list[list[_Way]]) -> list[_Way]:
    kept: list[_Way] = []
    for ready, free, begin, which in sorted(found):
        if not kept or free < kept[-1].free:
            kept.append(_Way(ready, free, begin, ways[begin][which]))
    return kept


def check(sizes: Sequence[int], backward: Sequence[float]) -> None:
    """One of each for every tensor, of which there is one at least."""
    if not len(sizes) == len(backward) > 0:
        raise LaconicError(f"{len(sizes)} sizes and {len(backward)} times; give one of each for every tensor")
