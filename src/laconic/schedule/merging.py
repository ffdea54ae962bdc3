"""Which neighbouring tensors are sent together, and sparsified where they are: plans from a profile, as plain values.

Tensors are numbered in the order of the forward pass; backward makes the last one's gradient first. A plan is groups of
numbers in the order in which they are sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from laconic.errors import LaconicError
from laconic.registry import technique
from laconic.values.comm_plan import Groups
from laconic.values.price import Price


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
class DenseCosts:
    """Seconds where nothing is selected: so many bytes for each element."""

    price: Price
    bytes_each: int = 4

    def selecting(self, elements: int) -> float:
        return 0.0

    def sending(self, elements: int) -> float:
        return self.price.seconds(self.bytes_each * elements)


Costs = SparseCosts | DenseCosts


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


def timeline(groups: Groups, sizes: Sequence[int], backward: Sequence[float], costs: Costs) -> Timeline:
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
def greedy(sizes: Sequence[int], backward: Sequence[float], costs: Costs) -> Groups:
    """Merge a tensor with the next where waiting for it adds less than the start-up saves; for layer-wise topk+ef.

    From the last tensor to the first. Each group is one buffer with one selection and one message. Reading chosen: the
    published program's rule; `exact` finds the best plan of the same model, which this one need not.
    """
    check(sizes, backward)
    groups: list[tuple[int, ...]] = []
    own, numel, busy = (), 0, 0.0  # type: tuple[int, ...], int, float
    now, free = 0.0, 0.0  # computing and the network, when the groups before are over
    for i in reversed(range(len(sizes))):
        if own:
            selected = now + busy + costs.selecting(numel)
            both, next_ = numel + sizes[i], sizes[i]
            more = costs.selecting(both) - costs.selecting(numel) - costs.selecting(next_)
            waits = backward[i] + more - (max(selected, free) - selected)
            saves = costs.sending(numel) + costs.sending(next_) - costs.sending(both)
            if waits >= saves:
                groups.append(own)
                now, free = selected, max(selected, free) + costs.sending(numel)
                own, numel, busy = (), 0, 0.0
        own, numel, busy = (*own, i), numel + sizes[i], busy + backward[i]
    return (*groups, own)


def exact_dense(nbytes: Sequence[float], backward: Sequence[float], price: Price) -> Groups:
    """The same as `exact` for dense messages, where computing does not depend on the groups: a dynamic program over the
    last group's beginning, E_j = min over k > j of max(E_k, r_j) + A + B·(p_j + … + p_{k-1})."""
    check(nbytes, backward)
    count = len(nbytes)
    ready = np.cumsum(np.asarray(backward, dtype=float)[::-1])[::-1]
    before = np.concatenate([[0.0], np.cumsum(np.asarray(nbytes, dtype=float))])
    ends, chosen = np.zeros(count + 1), np.zeros(count, dtype=int)
    sending = price.startup_seconds + price.seconds_per_byte * before
    for j in reversed(range(count)):
        found = np.maximum(ends[j + 1 :], ready[j]) + sending[j + 1 :]
        chosen[j] = j + 1 + int(found.argmin())
        ends[j] = found[chosen[j] - j - 1] - price.seconds_per_byte * before[j]
    groups: list[tuple[int, ...]] = []
    j = 0
    while j < count:
        groups.append(tuple(reversed(range(j, int(chosen[j])))))
        j = int(chosen[j])
    return tuple(reversed(groups))


def exact(sizes: Sequence[int], backward: Sequence[float], costs: Costs) -> Groups:
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


def check(sizes: Sequence[float], backward: Sequence[float]) -> None:
    """One of each for every tensor, of which there is one at least."""
    if not len(sizes) == len(backward) > 0:
        raise LaconicError(f"{len(sizes)} sizes and {len(backward)} times; give one of each for every tensor")
